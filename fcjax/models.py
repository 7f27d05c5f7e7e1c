"""The earlier name of `fcjax.nn`. Version 0.3 will remove it."""

import warnings

from fcjax.nn import *  # noqa: F403
from fcjax.nn import __all__ as __all__

warnings.warn(
    "fcjax.models is now fcjax.nn; the old name ends with version 0.3",
    DeprecationWarning,
    stacklevel=2,
)
