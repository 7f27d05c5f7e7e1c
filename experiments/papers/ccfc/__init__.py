"""The CCFC paper."""
