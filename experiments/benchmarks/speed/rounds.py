"""Times rounds of every method's script on digits: one run, and a grid of four runs."""

import statistics

from experiments.benchmarks.speed import commands

COMMANDS = {
    "ccfc": ("ccfc", ("--pretrain-rounds", "--cluster-rounds")),
    "fedmcc": ("fedmcc", ("--num-rounds", "--cluster-rounds")),
    "sda-fdc": ("sda_fdc", ("--gan-rounds", "--pretrain-rounds", "--joint-rounds")),
    "fdsc": ("fdsc", ("--pretrain-rounds", "--num-rounds")),
    "fedcref": ("fedcref", ("--pretrain-rounds", "--joint-rounds", "--num-rounds")),
}
"""Script and flags of the numbers of rounds, by method."""
GRID = 4


def rows(method: str, *, rounds: int) -> list[list[str]]:
    """Times the rounds of a method's script.

    Args:
        method: name of the method.
        rounds: number of timed rounds per stage.

    Returns:
        One row per stage with more than two rounds: name; seconds per round of one run,
        and their range; seconds per round and run of the grid, and their range; the
        ratio of grid and single run; compile seconds and peak memory of the single run.
    """
    script, flags = COMMANDS[method]
    # The first round compiles and the last round is scored, so neither is timed.
    round_flags = [x for flag in flags for x in (flag, str(rounds + 2))]
    single = commands.run(script, [*round_flags, "--seed", "0"])
    grid = commands.run(script, [*round_flags, "--seed", *map(str, range(GRID))])
    rows_of_stages = []
    for stage, each in single.seconds.items():
        if stage not in grid.seconds:
            continue
        single_seconds, grid_seconds = (
            statistics.median(x[stage]) for x in (single.seconds, grid.seconds)
        )
        rows_of_stages.append(
            [
                f"{method} {stage}",
                *_spread(each),
                *_spread(grid.seconds[stage]),
                f"{grid_seconds / single_seconds:.2f}",
                f"{single.compile_seconds:.1f}",
                f"{single.peak_bytes / 2**30:.2f}",
            ]
        )
    return rows_of_stages


def _spread(seconds: list[float]) -> list[str]:
    middle = statistics.median(seconds)
    return [f"{middle:.3f}", f"{min(seconds):.3f} to {max(seconds):.3f}"]
