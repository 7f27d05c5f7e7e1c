"""What can be done with finished runs: each file that can be run is a command."""

__all__: list[str] = []
