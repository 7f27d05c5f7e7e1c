"""Federated clustering methods. Each method is a dataclass of its settings.

from fcjax.methods import CCFC

clusters = CCFC().fit_predict(x, clients=site, num_clusters=10)
"""

from typing import NamedTuple

from fcjax.methods.base import Method
from fcjax.methods.baselines import (
    FFCM,
    ExactFuzzyCMeans,
    ExactKMeans,
    FFCMMean,
    FuzzyCMeans,
    KFed,
    KMeans,
)
from fcjax.methods.ccfc import CCFC
from fcjax.methods.fdsc import DLRSC, DSCN, FDSC, FDSC1, LRSC
from fcjax.methods.fedcref import DEC, UIFCA, FedCRef
from fcjax.methods.fedmcc import (
    CC,
    MCC,
    FedCC,
    FedEMA,
    FedMCC,
    FedMCCOneStage,
    FedSimCLR,
    FedSimSiam,
    FedU,
)
from fcjax.methods.orchestra import Orchestra
from fcjax.methods.sda_fdc import (
    DCN,
    SDAFCFCM,
    SDAFCKM,
    SDAFDC,
    DCNDisjoint,
    SDAFDCDisjoint,
)

__all__ = [
    "CC",
    "CCFC",
    "DCN",
    "DEC",
    "DLRSC",
    "DSCN",
    "FDSC",
    "FDSC1",
    "FFCM",
    "LRSC",
    "MCC",
    "SDAFCFCM",
    "SDAFCKM",
    "SDAFDC",
    "UIFCA",
    "DCNDisjoint",
    "ExactFuzzyCMeans",
    "ExactKMeans",
    "FFCMMean",
    "FedCC",
    "FedCRef",
    "FedEMA",
    "FedMCC",
    "FedMCCOneStage",
    "FedSimCLR",
    "FedSimSiam",
    "FedU",
    "FuzzyCMeans",
    "KFed",
    "KMeans",
    "Method",
    "Orchestra",
    "SDAFDCDisjoint",
]


class Script(NamedTuple):
    """The methods of one command, `fcjax NAME`."""

    methods: tuple[type[Method], ...]
    """All methods of the command, for --methods."""
    default: tuple[type[Method], ...]
    """The methods that run without --methods."""


SCRIPTS = {
    "ccfc": Script((CCFC,), (CCFC,)),
    "fedmcc": Script(
        (
            *(FedMCC, FedU, FedEMA, FedSimSiam, FedSimCLR, FedCC, FedMCCOneStage),
            *(CC, MCC),
        ),
        (FedMCC,),
    ),
    "orchestra": Script((Orchestra,), (Orchestra,)),
    "sda-fdc": Script(
        (SDAFDC, SDAFDCDisjoint, SDAFCKM, SDAFCFCM, DCN, DCNDisjoint), (SDAFDC,)
    ),
    "fdsc": Script((FDSC, FDSC1, DSCN, DLRSC, LRSC), (FDSC,)),
    "fedcref": Script((FedCRef, DEC, UIFCA), (FedCRef,)),
    "baselines": Script(
        (KMeans, FuzzyCMeans, KFed, FFCM, FFCMMean, ExactKMeans, ExactFuzzyCMeans),
        (KMeans, FuzzyCMeans, KFed, FFCM),
    ),
}
"""The methods of each command, by its name."""


def script_with(method: type[Method]) -> Script:
    """Returns the command that runs a method; a new command for a method of a user.

    Args:
        method: class of the method.

    Returns:
        The command in `SCRIPTS`, or a new command with this method alone.
    """
    scripts = [x for x in SCRIPTS.values() if method in x.methods]
    return scripts[0] if scripts else Script((method,), (method,))
