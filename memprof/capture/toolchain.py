"""The versions of everything that has a say in how a step is compiled."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from memprof.analysis.capture import Toolchain
from memprof.version import __version__


def toolchain(cuda_plugin: str | None) -> Toolchain:
    """Look the versions up in the installed packages; imports none of them."""
    return Toolchain(
        memprof=__version__,
        python=platform.python_version(),
        jax=installed_version("jax") or "",
        jaxlib=installed_version("jaxlib") or "",
        cuda_plugin=cuda_plugin,
        flax=installed_version("flax"),
        optax=installed_version("optax"),
        xla_flags=os.environ.get("XLA_FLAGS", ""),
    )


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
