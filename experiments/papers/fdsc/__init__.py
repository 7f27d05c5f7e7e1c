"""The tables and figures of the FDSC paper."""
