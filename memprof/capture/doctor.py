"""What this machine can do: what is installed, what JAX sees, and what is missing for more."""

from __future__ import annotations

from dataclasses import dataclass

from memprof.capture.targets.resolve import has_accelerator_device
from memprof.capture.xla.toolchain import installed_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at. `ok` is None where it is neither good nor bad; `advice` says what to do where it is bad."""

    what: str
    ok: bool | None
    found: str
    advice: str = ""


def examine() -> tuple[Finding, ...]:
    """Look at packages, backends and CUDA tools. Starts JAX's backends in this process; compiles nothing."""
    return (*_packages(), *_backends(), *_cuda_tools(), _libtpu(), _onnx(), _tensorrt())


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
    is_accelerator = devices[0].platform != "cpu"
    advice = (
        "" if is_accelerator else "install jax for this accelerator, for example " + 'pip install "jax-memprof[cuda13]"'
    )
    return [Finding(what="local device", ok=is_accelerator, found=f"{len(devices)} x {kinds}", advice=advice)]


def _libtpu() -> Finding:
    """Its absence is no fault: only those need it who compile for TPUs."""
    from memprof.capture.xla.deviceless import INSTALL_TPU, libtpu_version

    version = libtpu_version()
    return Finding(what="libtpu", ok=None, found=version or f"missing (TPU targets: {INSTALL_TPU})")


def _onnx() -> Finding:
    found = installed_version("onnx")
    return Finding(what="onnx", ok=None, found=found or "missing (memprof export: pip install 'jax-memprof[onnx]')")


def _tensorrt() -> Finding:
    """Likewise; who installs it accepts its license."""
    found = installed_version("tensorrt-rtx-cu13")
    missing = "missing (--engine tensorrt: pip install 'jax-memprof[tensorrt]'; proprietary, NVIDIA's license)"
    return Finding(what="TensorRT for RTX", ok=None, found=found or missing)


def _cuda_tools() -> list[Finding]:
    from memprof.capture.xla import cuda_tools, xla_adapter

    advice = cuda_tools.INSTALL_DEVICELESS
    tools = {
        "CUDA plugin": xla_adapter.cuda_plugin_version(),
        "ptxas": cuda_tools.find_ptxas(),
        "libdevice": cuda_tools.find_libdevice(),
    }
    return [
        Finding(what=what, ok=where is not None, found=str(where or "missing"), advice=advice)
        for what, where in tools.items()
    ]
