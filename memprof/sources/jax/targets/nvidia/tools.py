"""Tools needed to compile for an NVIDIA GPU, besides JAX: its CUDA plugin, ptxas, and libdevice.

XLA looks for ptxas and libdevice in the folder that JAX gives it (the `nvidia-*` wheels, or `CUDA_ROOT`), then on the
PATH and in the usual places of a CUDA toolkit. This module searches the same places, so that missing tools are reported
before a compile fails.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from memprof.sources.jax.xla import xla_adapter

INSTALL_DEVICELESS = 'pip install "jax-memprof[deviceless]"'
_TOOLKIT = Path("/usr/local/cuda")


def find_ptxas() -> Path | None:
    """Return the PTX assembler that XLA would use, or None."""
    on_path = shutil.which("ptxas")
    candidates = [folder / "bin" / "ptxas" for folder in _cuda_folders()]
    return _first(candidates) or (Path(on_path) if on_path else _first([_TOOLKIT / "bin" / "ptxas"]))


def find_libdevice() -> Path | None:
    """Return NVIDIA's library of device functions that XLA would link, or None."""
    folders = [*_cuda_folders(), _TOOLKIT]
    return _first([folder / "nvvm" / "libdevice" / "libdevice.10.bc" for folder in folders])


def missing_for_deviceless() -> tuple[str, ...]:
    """Return the missing tools for a compile for an absent NVIDIA GPU; empty if all are found.

    Without ptxas such a compile fails with an error; without libdevice it crashes the process.
    """
    return tuple(what for what, where in found_tools().items() if where is None)


def found_tools() -> dict[str, str | Path | None]:
    """Return the tools that such a compile needs, each with its version or path, or None if it is missing."""
    return {
        "JAX's CUDA plugin": xla_adapter.cuda_plugin_version(),
        "ptxas": find_ptxas(),
        "libdevice": find_libdevice(),
    }


def _cuda_folders() -> list[Path]:
    folder = xla_adapter.cuda_folder()
    return [] if folder is None else [folder]


def _first(candidates: list[Path]) -> Path | None:
    return next((path for path in candidates if path.is_file()), None)
