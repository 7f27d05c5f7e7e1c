"""Runs a grid of experiments, from the task to the results.

`plan` lists the runs of a grid, `experiment` checks the grid, `train` trains and scores
the runs, and `report` prints the results. Messages go to the logger `fcjax`.
"""

__all__: list[str] = []
