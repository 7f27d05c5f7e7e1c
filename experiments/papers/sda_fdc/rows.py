"""Rows and notes of SDA-FDC's family of methods, for the tables of two papers.

A row has one results folder for both papers, so that its runs are trained once.
"""

from experiments.papers.study import Row

SCRIPT = "sda_fdc"
SHORT = {"gan_rounds": (40,), "pretrain_rounds": (20,), "joint_rounds": (10,)}
"""Settings of a smoke run."""
SDA_FC_KM = Row("SDA-FC-KM", SCRIPT, {"methods": ("sda-fc-km",)})
SDA_FC_FCM = Row("SDA-FC-FCM", SCRIPT, {"methods": ("sda-fc-fcm",)})
SDA_FDC = Row("SDA-FDC", SCRIPT, {"methods": ("sda-fdc",)})
PPFC_GAN = SDA_FDC._replace(label="PPFC-GAN", runs="SDA-FDC")
"""The name of SDA-FDC in later papers."""
DISJOINT = Row("SDA-FDC (disjoint)", SCRIPT, {"methods": ("sda-fdc-disjoint",)})
DCN_CENTRAL = Row("DCN_central", SCRIPT, {"methods": ("dcn",)}, central=True)
KM_CENTRAL = Row(
    "KM_central", "baselines", {"methods": ("km",)}, runs="KM", central=True
)
OF_GANS = (
    "generators have the non-saturating loss; the SDA-FDC paper prints the minimax "
    "loss",
    "rounds, batch sizes and learning rates of the GANs are from, or near, the "
    "authors' code of SDA-FC; the paper gives none",
    "a generator makes one synthetic example per real example of its client, as in the "
    "paper; the authors' code makes 7,000 examples for MNIST",
)
OF_DCN = (
    "lambda, rounds, batch size and learning rate of DCN are choices of fcjax; the "
    "SDA-FDC paper gives none"
)
ALIKE = (
    "SDA-FC-KM, SDA-FDC (disjoint) and SDA-FDC share their GANs, which are trained "
    "once; they differ in the server's clustering of the synthetic examples"
)
