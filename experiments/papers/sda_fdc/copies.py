"""Whether what SDA-FDC's clients send gives their examples away: no paper's figure."""

from experiments.papers.sda_fdc.rows import SCRIPT, SDA_FDC
from experiments.papers.study import Preset, Study

GRID = {"p": (0.25,)}
STUDIES = {
    "sda-fdc-copies": Study(
        "whether synthetic examples are copies of a client's, and what they look like",
        datasets=("mnist",),
        rows=(SDA_FDC,),
        presets={
            # On less than some 180 digits a GAN learns nothing that one could look at.
            "smoke": Preset(GRID, (0,), {SCRIPT: {"clients": (5,)}}),
            "paper": Preset(GRID, (0,), {SCRIPT: {"preset": "paper"}}),
        },
        draw_runs="sda_fdc.examples.figure_synthetic",
        notes=(
            "a half of the data is dealt to the clients, the other is held out",
            "copy_probability: 0.5 without copying, near 1 for copies, near 0 for what "
            "is far off the data; closest_share: 0.01 without",
        ),
    ),
}
