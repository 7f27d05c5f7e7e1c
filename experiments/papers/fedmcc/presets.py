"""The presets of the FedMCC paper's tables: shortened, and as in Section IV-A."""

from collections.abc import Mapping
from typing import Any

from experiments.papers.fedmcc.printed import IID, NON_IID
from experiments.papers.study import Preset

SCRIPT = "fedmcc"
SHARES = (IID, NON_IID)
LARGE = {"resize": 224}
BY_DATASET = {  # Section IV-A; MNIST has the same kind of network.
    "cifar10": LARGE,
    "cifar100": LARGE,
    "cifar20": LARGE,
    "stl10": {**LARGE, "extra_split": "unlabelled"},
    "imagenet-10": LARGE,
    "imagenet-dogs": LARGE,
    "tiny-imagenet": LARGE,
    "mnist": {"resize": 32, "backbone": "resnet18"},
}
SHORT = {"num_rounds": (10,), "cluster_rounds": (5,)}
"""Settings of a smoke run."""
OF_SHARES = (
    "class_share 1: IID, each of 5 clients has all classes; class_share 0.2: each "
    "client has two of ten classes"
)


def methods(name: str, **flags: Any) -> dict[str, Any]:
    """Returns the flags of a method: its name and further flags.

    Args:
        name: name of the method in the script.
        **flags: further flags of the script.

    Returns:
        The flags by name.
    """
    return {"methods": (name,), **flags}


def rounds(*, smoke: tuple[int, ...], paper: tuple[int, ...]) -> dict[str, dict]:
    """Returns a row's numbers of rounds, by preset.

    Args:
        smoke: the numbers of rounds of the smoke preset.
        paper: the numbers of rounds of the paper preset.

    Returns:
        The flags of each preset, by the name of the preset.
    """
    return {"smoke": {"num_rounds": smoke}, "paper": {"num_rounds": paper}}


def presets(
    smoke: Mapping[str, tuple],
    paper: Mapping[str, tuple],
    *,
    smoke_seeds: tuple[int, ...] = (0, 1),
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    split: Mapping[str, str] | None = None,
) -> dict[str, Preset]:
    """Returns both presets from their grids.

    Args:
        smoke: the grid of the smoke preset.
        paper: the grid of the paper preset.
        smoke_seeds: the seeds of the smoke preset.
        seeds: the seeds of the paper preset.
        split: flags that select the training examples of the paper's data sets.

    Returns:
        The presets by name.
    """
    split = split or {}
    small = dict.fromkeys(BY_DATASET, split)
    whole = {name: {**flags, **split} for name, flags in BY_DATASET.items()}
    full = {script: {"preset": "paper"} for script in (SCRIPT, "baselines")}
    return {
        "smoke": Preset(smoke, smoke_seeds, {SCRIPT: SHORT}, small),
        "paper": Preset(paper, seeds, full, whole),
    }


def of_shares(*shares: float, **options: Any) -> dict[str, Preset]:
    """Returns both presets with a grid over class shares."""
    grid = {"class_share": shares}
    return presets(grid, grid, **options)
