"""The command line: parsers of the arguments, the commands, and their error lines."""

__all__: list[str] = []
