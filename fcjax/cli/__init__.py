"""The command line: the one place that reads arguments, prints and ends the process."""

__all__: list[str] = []
