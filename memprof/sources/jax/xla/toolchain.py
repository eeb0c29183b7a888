"""The versions of all packages that affect a compile, and the folders of the step's code."""

from __future__ import annotations

import linecache
import os
import platform
import sys
import sysconfig
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from memprof.analysis.records.capture import CodeFolders, Toolchain
from memprof.version import __version__


def toolchain(
    cuda_plugin: str | None, xla_flags: str, jax_settings: Mapping[str, str], *, libtpu: str | None = None
) -> Toolchain:
    """Return the versions of the imported packages, otherwise of the installed ones, without importing any."""
    return Toolchain(
        memprof=__version__,
        python=platform.python_version(),
        jax=_version_in_use("jax") or "",
        jaxlib=_version_in_use("jaxlib") or "",
        cuda_plugin=cuda_plugin,
        flax=_version_in_use("flax"),
        optax=_version_in_use("optax"),
        xla_flags=xla_flags,
        jax_settings=jax_settings,
        libtpu=libtpu,
    )


def code_folders() -> CodeFolders:
    """Return the current folders of the user's code and of the standard library.

    Python puts the folder of a script first in its path.
    """
    try:
        working = [os.getcwd()]
    except FileNotFoundError:  # the user's code may have removed it
        working = []
    user = dict.fromkeys([*working, *filter(os.path.isabs, sys.path[:1])])
    library = dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    return CodeFolders(user=tuple(user), standard_library=tuple(library), cells=_cells())


def _cells() -> dict[str, str]:
    """Return the names of a notebook's cells by their file names; empty outside IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    if name_of is None:
        return {}
    return {file: " ".join(name) for file in list(linecache.cache) if (name := name_of(file))}


def _version_in_use(package: str) -> str | None:
    """Return the version of the imported package, which an upgrade on disk does not change, or the installed one's."""
    imported: str | None = getattr(sys.modules.get(package), "__version__", None)
    return imported or installed_version(package)


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
