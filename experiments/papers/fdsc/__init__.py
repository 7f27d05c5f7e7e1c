"""The FDSC paper."""
