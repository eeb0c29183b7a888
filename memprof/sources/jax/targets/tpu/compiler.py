"""The compiler for absent TPUs: libtpu."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import jax

from memprof.analysis.records.capture import Target
from memprof.sources.jax.targets.deviceless import DevicelessCompiler
from memprof.sources.jax.targets.tpu.catalogue import chips_of, host_bounds, tpus
from memprof.sources.jax.xla import xla_adapter
from memprof.sources.jax.xla.toolchain import installed_version

INSTALL_TPU = 'pip install "jax-memprof[tpu]"'


def libtpu_version() -> str | None:
    """Return `libtpu 0.0.50.1`, or the path of a library named by the environment; None if libtpu is missing."""
    installed, library = _installed_library(), _library()
    if library is None:
        return None
    return f"libtpu {installed_version('libtpu')}" if library == installed else str(library)


def _library() -> Path | None:
    """Return the library that JAX loads. JAX sets the variable itself when it loads one."""
    named = os.environ.get("TPU_LIBRARY_PATH")
    return Path(named) if named else _installed_library()


def _installed_library() -> Path | None:
    spec = importlib.util.find_spec("libtpu")
    return None if spec is None or spec.origin is None else Path(spec.origin).with_name("libtpu.so")


def _devices(target: Target) -> list[jax.Device]:
    tpu, topology = tpus()[target.compiler_config], target.topology
    chips = topology.chips or chips_of(tpu, topology)
    options: dict[str, Any] = {"chips_per_host_bounds": host_bounds(chips), **tpu.options}
    if topology.num_slices > 1:
        options["num_slices"] = topology.num_slices
    devices = xla_adapter.tpu_devices(f"{tpu.name}:{'x'.join(map(str, chips))}", options)
    return devices[: topology.num_devices]  # the user may ask for one device of a multi-device chip


COMPILER = DevicelessCompiler(
    missing=lambda: () if libtpu_version() else ("libtpu",),
    install=INSTALL_TPU,
    devices=_devices,
    tools=lambda: (_library(),),
    refuses=True,
)
