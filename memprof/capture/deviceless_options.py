"""How XLA compiles for a GPU that need not be there: without work that cannot change the plan.

Autotuning has no device to try kernels on: since jaxlib 0.12 it takes half of the compile's time to end where it began
(`benchmarks/plan_identity.py` compares the plans). Before, it takes no time, and gives cuBLAS other scratch.

Kernels are compiled after the plan is made, and nothing here ever runs them. With `MEMPROF_KERNEL_CACHE=FOLDER` in the
environment those that XLA made are kept in that folder, and a later compile, also in another process, takes them from
there. Compiles may share the folder: each works on a copy of its own, and puts it back whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from memprof.analysis.capture import Target
from memprof.capture.toolchain import installed_version
from memprof.files import IfTaken, make_folder, write_whole

KERNEL_CACHE_VARIABLE = "MEMPROF_KERNEL_CACHE"
_KERNEL_CACHE_OPTION = "xla_gpu_kernel_cache_file"
_AUTOTUNING = "autotune"  # in the names of all options that are about it
_NO_AUTOTUNING = {"xla_gpu_autotune_level": "0"}
_IDLE_AUTOTUNING_SINCE = (0, 12)
# XLA reads all of the file for each compile. A kernel takes some 7 KiB.
_MAX_KERNEL_CACHE_BYTES = 64 * 2**20


@contextmanager
def deviceless_options(
    target: Target, asked: Iterable[str], dump_folder: Path, plugin: str | None
) -> Iterator[dict[str, str]]:
    """XLA's options for one compile. What `XLA_FLAGS` or the step's own options say of the same matter stands.

    Args:
        asked: the names of the step's own options.
        dump_folder: the folder of XLA's dump, which this compile has for itself.
        plugin: name and version of JAX's CUDA plugin, which is the compiler.
    """
    said = " ".join((os.environ.get("XLA_FLAGS", ""), *asked))
    options = dict(_NO_AUTOTUNING) if _tunes_in_vain() and _AUTOTUNING not in said else {}
    folder = os.environ.get(KERNEL_CACHE_VARIABLE)
    if not folder or _KERNEL_CACHE_OPTION in said:
        yield options
        return
    compiler = f"{plugin}-jaxlib-{installed_version('jaxlib')}".replace(" ", "-")
    kept = Path(folder) / f"{compiler}-sm{target.compute_capability}.kernels"
    own = dump_folder / "kernels"
    dump_folder.mkdir(parents=True, exist_ok=True)
    if _size_bytes(kept) < _MAX_KERNEL_CACHE_BYTES:
        _put(kept, own)
    before_bytes = _size_bytes(own)
    yield {**options, _KERNEL_CACHE_OPTION: str(own)}
    if _size_bytes(own) > before_bytes:
        _put(own, kept)


def _tunes_in_vain() -> bool:
    major, minor = (installed_version("jaxlib") or "0.0").split(".")[:2]
    return (int(major), int(minor)) >= _IDLE_AUTOTUNING_SINCE


def _size_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _put(source: Path, destination: Path) -> None:
    """Copy a file, if it is there, to where others may read at the same time: they see the old one or the new one."""
    if source.exists():
        make_folder(destination.parent)
        write_whole(destination, source.read_bytes(), what="the compiled kernels", if_taken=IfTaken.REPLACE)
