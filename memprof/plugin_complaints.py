"""Hide the traceback that JAX's CUDA plugin logs if it finds no cuDNN, unless the user could need it.

The extra `deviceless` installs the plugin for its compiler, which needs neither a GPU nor cuDNN. Without this filter, a
user who then creates an array on the CPU would see `RuntimeError: Unable to load cuDNN. Is it installed?` (jax 0.10.2
to 0.12).
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

_JAX_LOGGER = "jax._src.xla_bridge"
_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")


def leave_out_plugin_complaints() -> None:
    """Hide JAX's message that a CUDA plugin fails to start, if CUDA was not requested and no GPU is present."""
    logger = logging.getLogger(_JAX_LOGGER)
    if _is_useful not in logger.filters:
        logger.addFilter(_is_useful)


def _is_useful(record: logging.LogRecord) -> bool:
    is_complaint = str(record.msg).startswith("Jax plugin configuration error") and record.args
    if not is_complaint or not any(str(argument) in _PLUGINS for argument in record.args or ()):
        return True
    asked = os.environ.get("JAX_PLATFORMS", "")
    return "cuda" in asked or "gpu" in asked or any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def show_plugin_complaints() -> None:
    """Show the messages again, because the output of a watched script must stay unchanged."""
    logging.getLogger(_JAX_LOGGER).removeFilter(_is_useful)
