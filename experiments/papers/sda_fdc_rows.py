"""The methods of SDA-FDC's family as rows, which the tables of two papers have: each
trains once for both."""

from .study import Row

SCRIPT = "sda_fdc"
SHORT = {"gan_rounds": (12,), "pretrain_rounds": (10,), "joint_rounds": (5,)}
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
