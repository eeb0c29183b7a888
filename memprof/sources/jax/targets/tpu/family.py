"""The family of TPUs: names, descriptions and compiler."""

from __future__ import annotations

from collections.abc import Mapping

from memprof.sources.jax.targets.deviceless import DevicelessCompiler
from memprof.sources.jax.targets.family import Finding, TargetFamily
from memprof.sources.jax.targets.tpu import FACTS
from memprof.sources.jax.targets.tpu.catalogue import tpu_of_kind, tpus


def _compiler() -> DevicelessCompiler:
    from memprof.sources.jax.targets.tpu.compiler import COMPILER

    return COMPILER


def _versions() -> Mapping[str, str | None]:
    from memprof.sources.jax.targets.tpu.compiler import libtpu_version

    return {"libtpu": libtpu_version()}


def _findings() -> list[Finding]:
    """Report libtpu. Its absence is not a problem, because only compiles for TPUs need it."""
    from memprof.sources.jax.targets.tpu.compiler import INSTALL_TPU, libtpu_version

    return [Finding(what="libtpu", ok=None, found=libtpu_version() or f"missing (TPU targets: {INSTALL_TPU})")]


FAMILY = TargetFamily(
    facts=FACTS,
    jax_platform="tpu",
    catalogue=tpus,
    device_of_kind=tpu_of_kind,
    compiler=_compiler,
    example="v5e",
    packages=("libtpu",),
    versions=_versions,
    findings=_findings,
)
