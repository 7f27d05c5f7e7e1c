"""From a task to its results: `plan` lists the runs of a grid, `experiment` checks it,
`train` trains and scores it, `report` sums it up. Messages go to the logger `fcjax`.
"""

__all__: list[str] = []
