"""Study of data copying: whether SDA-FDC's synthetic examples reveal real examples.

This study is not in the paper.
"""

from experiments.papers.sda_fdc.rows import SCRIPT, SDA_FDC
from experiments.papers.study import Preset, Study

GRID = {"p": (0.25,)}
STUDIES = {
    "sda-fdc-copies": Study(
        "are synthetic examples copies of real examples? Scores and pictures",
        datasets=("mnist",),
        rows=(SDA_FDC,),
        presets={
            # With fewer than about 180 digits per client a GAN learns no digits.
            "smoke": Preset(GRID, (0,), {SCRIPT: {"clients": (5,)}}),
            "paper": Preset(GRID, (0,), {SCRIPT: {"preset": "paper"}}),
        },
        draw_runs="sda_fdc.examples.figure_synthetic",
        notes=(
            "half of the data is partitioned over the clients, the other half is held "
            "out",
            "copy_probability: 0.5 without copying, near 1 for copies, near 0 for "
            "synthetic examples far from the data",
            "closest_share: 0.01 without copying, larger for copies",
        ),
    ),
}
