"""The SDA-FDC paper."""
