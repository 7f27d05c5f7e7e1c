"""From a script's flags to the grid they span, and what is found and scored in it.

`flags` and `dealing` say what is wanted, `experiment` checks it, `plan` tells which
runs share a program and a call; `found`, `communities` and `scoring` read what was
trained.
"""

__all__: list[str] = []
