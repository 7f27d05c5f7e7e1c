"""What can be done with finished runs: each file that can be run is a command.

`finished` reads a run's folder back, `frozen` its network without the method's code.
"""

__all__: list[str] = []
