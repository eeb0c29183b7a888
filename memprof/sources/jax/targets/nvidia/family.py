"""The family of NVIDIA's GPUs: names, descriptions and compiler."""

from __future__ import annotations

from collections.abc import Mapping

from memprof.sources.jax.targets.deviceless import DevicelessCompiler
from memprof.sources.jax.targets.family import Finding, TargetFamily
from memprof.sources.jax.targets.nvidia import FACTS
from memprof.sources.jax.targets.nvidia.catalogue import gpu_of_kind, gpus
from memprof.sources.jax.targets.nvidia.config_file import read_file
from memprof.sources.jax.targets.nvidia.driver import open_drivers

# Percent of the memory that is left beside arguments and results; the default is 95.
UNLIMITED = {"xla_gpu_memory_limit_slop_factor": 1_000_000}


def _compiler() -> DevicelessCompiler:
    from memprof.sources.jax.targets.nvidia.compiler import COMPILER

    return COMPILER


def versions() -> Mapping[str, str | None]:
    """Return the version of the JAX plugin that holds the compiler. The plugin is loaded for the CPU, too."""
    from memprof.sources.jax.xla import xla_adapter

    return {"cuda_plugin": xla_adapter.cuda_plugin_version()}


def _findings() -> list[Finding]:
    from memprof.sources.jax.targets.nvidia import tools

    return [
        Finding(
            what=what.removeprefix("JAX's "),
            ok=where is not None,
            found=str(where or "missing"),
            advice=tools.INSTALL_DEVICELESS,
        )
        for what, where in tools.found_tools().items()
    ]


FAMILY = TargetFamily(
    facts=FACTS,
    jax_platform="gpu",
    catalogue=gpus,
    device_of_kind=gpu_of_kind,
    read_file=read_file,
    file_row=("FILE.pbtxt", "a GpuTargetConfigProto that XLA exported on a real machine"),
    compiler=_compiler,
    example="h100-80gb",
    unlimited=UNLIMITED,
    packages=("jax-cuda13-plugin", "jax-cuda12-plugin"),
    versions=versions,
    findings=_findings,
    open_drivers=open_drivers,
)
