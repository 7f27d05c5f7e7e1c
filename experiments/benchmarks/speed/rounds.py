"""Rounds of every method's script on embedded digits: one run, and a grid of four."""

import statistics

from experiments.benchmarks.speed import commands

COMMANDS = {
    "ccfc": ("ccfc", ("--pretrain-rounds", "--cluster-rounds")),
    "fedmcc": ("fedmcc", ("--num-rounds", "--cluster-rounds")),
    "sda-fdc": ("sda_fdc", ("--gan-rounds", "--pretrain-rounds", "--joint-rounds")),
    "fdsc": ("fdsc", ("--pretrain-rounds", "--num-rounds")),
    "fedcref": ("fedcref", ("--pretrain-rounds", "--joint-rounds", "--num-rounds")),
}
"""By method its script, and the flags that say how many rounds its stages have."""
GRID = 4


def rows(method: str, *, rounds: int) -> list[list[str]]:
    """Times a method's rounds, `rounds` of each stage.

    Returns:
        A row a stage of more than two rounds: its name; seconds a round of one run,
        least and most; seconds a round and run of the grid, least and most; the grid's
        share of the single run's; seconds of compilation of the one run, and what its
        process held.
    """
    script, flags = COMMANDS[method]
    # The first round of a stage waits for its compilation, the last one is scored.
    given = [x for flag in flags for x in (flag, str(rounds + 2))]
    alone = commands.run(script, [*given, "--seed", "0"])
    grid = commands.run(script, [*given, "--seed", *map(str, range(GRID))])
    found = []
    for stage, each in alone.seconds.items():
        if stage not in grid.seconds:
            continue
        one, many = (statistics.median(x[stage]) for x in (alone.seconds, grid.seconds))
        found.append(
            [
                f"{method} {stage}",
                *_spread(each),
                *_spread(grid.seconds[stage]),
                f"{many / one:.2f}",
                f"{alone.compile_seconds:.1f}",
                f"{alone.peak_bytes / 2**30:.2f}",
            ]
        )
    return found


def _spread(seconds: list[float]) -> list[str]:
    middle = statistics.median(seconds)
    return [f"{middle:.3f}", f"{min(seconds):.3f} to {max(seconds):.3f}"]
