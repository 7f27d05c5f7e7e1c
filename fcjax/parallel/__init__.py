"""Spreads runs and clients over devices and processes."""

__all__: list[str] = []
