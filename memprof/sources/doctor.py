"""Checks of this machine: the installed packages, the devices that JAX finds, and missing optional parts."""

from __future__ import annotations

from memprof.analysis.records.capture import Target
from memprof.sources.jax.targets.families import compiler_of, families, is_host
from memprof.sources.jax.targets.family import Finding
from memprof.sources.jax.targets.resolve import ASKED_FOR, DEFAULT_GPU, has_accelerator_device
from memprof.sources.jax.xla.toolchain import installed_version


def examine() -> tuple[Finding, ...]:
    """Check packages, backends and CUDA tools. This starts JAX's backends in this process, but compiles nothing."""
    return (*_packages(), *_backends(), *_tools(), _onnx(), _tensorrt())


def _packages() -> list[Finding]:
    findings = []
    for name in ("jax", "jaxlib", "flax", "optax", "protobuf"):
        version = installed_version(name)
        findings.append(
            Finding(what=name, ok=version is not None, found=version or "missing", advice=f"pip install {name}")
        )
    for name, use in (("xprof", "memory viewer"), ("tensorboard", "trace viewer")):
        version = installed_version(name)
        advice = "" if version else 'pip install "jax-memprof[tensorboard]"'
        findings.append(Finding(what=name, ok=None, found=version or f"missing ({use})", advice=advice))
    return findings


def _backends() -> list[Finding]:
    if not has_accelerator_device():
        return [Finding(what="local device", ok=None, found="the CPU; steps are compiled for GPUs, not run on them")]
    import jax

    try:
        devices = jax.devices()
    except RuntimeError as error:
        return [Finding(what="backends", ok=False, found=str(error).splitlines()[0], advice="check JAX_PLATFORMS")]
    kinds = ", ".join(sorted({f"{device.device_kind} ({device.platform})" for device in devices}))
    is_accelerator = not is_host(devices[0])
    advice = (
        "" if is_accelerator else "install jax for this accelerator, for example " + 'pip install "jax-memprof[cuda13]"'
    )
    return [Finding(what="local device", ok=is_accelerator, found=f"{len(devices)} x {kinds}", advice=advice)]


def _onnx() -> Finding:
    found = installed_version("onnx")
    return Finding(what="onnx", ok=None, found=found or "missing (memprof export: pip install 'jax-memprof[onnx]')")


def _tensorrt() -> Finding:
    """Check for TensorRT, which is optional: installing it means accepting its license."""
    found = installed_version("tensorrt-rtx-cu13")
    missing = "missing (--engine tensorrt: pip install 'jax-memprof[tensorrt]'; proprietary, NVIDIA's license)"
    return Finding(what="TensorRT for RTX", ok=None, found=found or missing)


def _tools() -> list[Finding]:
    return [finding for family in families() for finding in family.findings()]


def example_targets() -> tuple[tuple[Target, bool], ...]:
    """Return the targets to compile a small step for, each with whether to finish the compile, which needs all tools.

    The default target is included even if a tool is missing; its line then names the tool.
    """
    found = []
    for family in sorted(families(), key=lambda each: not each.facts.is_host):
        if family.example:
            target = family.catalogue()[family.example].target(ASKED_FOR)
            compiler = compiler_of(target)
            if compiler is None or target.name == DEFAULT_GPU or not compiler.missing():
                found.append((target, compiler is None or compiler.needs_tools))
    return tuple(found)
