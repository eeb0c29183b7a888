"""JAX's CUDA plugin complains, with a traceback, where it finds no cuDNN: of no use where there is no GPU.

The extra `deviceless` installs the plugin for its compiler, which needs neither GPU nor cuDNN. Whoever then makes an
array on the CPU would see `RuntimeError: Unable to load cuDNN. Is it installed?` (jax 0.10.2 to 0.12).
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

_JAX_LOGGER = "jax._src.xla_bridge"
_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")


def leave_out_plugin_complaints() -> None:
    """Have JAX keep to itself that a CUDA plugin does not start where nobody asked for CUDA and no GPU is there."""
    logger = logging.getLogger(_JAX_LOGGER)
    if _is_of_use not in logger.filters:
        logger.addFilter(_is_of_use)


def _is_of_use(record: logging.LogRecord) -> bool:
    is_complaint = str(record.msg).startswith("Jax plugin configuration error") and record.args
    if not is_complaint or not any(str(argument) in _PLUGINS for argument in record.args or ()):
        return True
    asked = os.environ.get("JAX_PLATFORMS", "")
    return "cuda" in asked or "gpu" in asked or any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def show_plugin_complaints() -> None:
    """Have JAX show them again: the output of a watched script is its own."""
    logging.getLogger(_JAX_LOGGER).removeFilter(_is_of_use)
