"""The versions of everything that has a say in how a step is compiled, and where its code lies."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from memprof.analysis.records.capture import CodeFolders, Toolchain
from memprof.version import __version__


def toolchain(cuda_plugin: str | None, jax_settings: Mapping[str, str]) -> Toolchain:
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
        jax_settings=jax_settings,
    )


def code_folders() -> CodeFolders:
    """The user's folders and the standard library's, as they are now.

    Python puts the folder of a script first in its path.
    """
    try:
        working = [os.getcwd()]
    except FileNotFoundError:  # the user's code may have removed it
        working = []
    user = dict.fromkeys([*working, *filter(os.path.isabs, sys.path[:1])])
    library = dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    return CodeFolders(user=tuple(user), standard_library=tuple(library))


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
