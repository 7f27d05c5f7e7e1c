"""The command line: only here arguments are read, flags named and processes ended."""

__all__: list[str] = []
