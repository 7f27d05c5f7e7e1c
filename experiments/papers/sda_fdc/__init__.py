"""The tables and figures of the SDA-FDC paper."""
