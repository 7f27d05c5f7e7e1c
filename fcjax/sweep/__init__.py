"""From a script's flags to the table: the grid they span, its runs, and what is kept.

`flags`, `load` and `deal` say what is wanted, `plan` what runs of it, `experiment`
checks it, `session` trains and scores it, `folder` and `states` keep it, `report` tells
of it.
"""

__all__: list[str] = []
