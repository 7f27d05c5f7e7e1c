"""The tables and figures of the CCFC paper."""
