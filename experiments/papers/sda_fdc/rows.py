"""The methods of SDA-FDC's family as rows, which the tables of two papers have: each
trains once for both; and what a reader of them should know.
"""

from experiments.papers.study import Row

SCRIPT = "sda_fdc"
SHORT = {"gan_rounds": (40,), "pretrain_rounds": (20,), "joint_rounds": (10,)}
"""Of a smoke run."""
SDA_FC_KM = Row("SDA-FC-KM", SCRIPT, {"methods": ("sda-fc-km",)})
SDA_FC_FCM = Row("SDA-FC-FCM", SCRIPT, {"methods": ("sda-fc-fcm",)})
SDA_FDC = Row("SDA-FDC", SCRIPT, {"methods": ("sda-fdc",)})
PPFC_GAN = SDA_FDC._replace(label="PPFC-GAN", runs="SDA-FDC")
"""What later papers call SDA-FDC."""
DISJOINT = Row("SDA-FDC (disjoint)", SCRIPT, {"methods": ("sda-fdc-disjoint",)})
DCN_CENTRAL = Row("DCN_central", SCRIPT, {"methods": ("dcn",)}, central=True)
KM_CENTRAL = Row(
    "KM_central", "baselines", {"methods": ("km",)}, runs="KM", central=True
)
OF_GANS = (
    "the SDA-FDC paper prints the GANs' minimax loss, and Adam alone: here generators "
    "have the non-saturating loss, and rounds, batches and rates are those of the "
    "authors' code of SDA-FC, or near them",
    "each generator makes as many examples as its client holds, as the paper says; "
    "that code makes 7,000 of MNIST",
)
OF_DCN = "lambda, rounds, batches and rates of DCN are ours, since that paper has none"
ALIKE = (
    "SDA-FC-KM, SDA-FDC (disjoint) and SDA-FDC have the same GANs, which are trained "
    "once, and differ in what the server does with their examples"
)
