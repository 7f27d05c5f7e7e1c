"""The earlier name of `fcjax.metrics`. Version 0.3 will remove it."""

import warnings

from fcjax.metrics import *  # noqa: F403
from fcjax.metrics import __all__ as __all__

warnings.warn(
    "fcjax.evaluation is now fcjax.metrics; the old name ends with version 0.3",
    DeprecationWarning,
    stacklevel=2,
)
