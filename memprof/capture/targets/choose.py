"""The target of a compile, with what JAX needs of it. Runs in the child process: it starts JAX's backends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from memprof.analysis.capture import TargetInfo
from memprof.capture import xla_adapter
from memprof.capture.cuda_tools import INSTALL_DEVICELESS, missing_for_deviceless
from memprof.capture.devices import has_accelerator_device
from memprof.capture.targets.resolve import (
    CPU,
    DEFAULT_GPU,
    LOCAL,
    DevicelessTarget,
    check_can_run,
    deviceless_target,
)
from memprof.errors import MemprofError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTarget:
    """A target, the local device that JAX traces for, and the sharding of abstract arguments (None: that device)."""

    info: TargetInfo
    device: jax.Device
    sharding: Any

    @property
    def on_device(self) -> jax.sharding.Sharding:
        """A sharding on the device that the step is compiled for."""
        return self.sharding or jax.sharding.SingleDeviceSharding(self.device)


def spare_devices(name: str | None) -> None:
    """Tell JAX, before it starts its backends, to leave devices alone that a target does not need.

    Starting a device's backend takes hold of it. This is for a process that does nothing else.
    """
    if name not in (None, LOCAL) or not has_accelerator_device():
        jax.config.update("jax_platforms", "cpu")


def spare_missing_devices() -> None:
    """Tell JAX not to look for devices where there are none, unless it has looked already: it would complain."""
    if not has_accelerator_device() and not xla_adapter.has_started_backends():
        jax.config.update("jax_platforms", "cpu")


def choose_target(name: str | None) -> ChosenTarget:
    """The target that the user asked for, or the best there is.

    Without a name: the local accelerator if there is one, else an H100 if what compiling for one takes is installed,
    else the CPU.

    Raises:
        MemprofError: there is no such target, or what it takes is not installed.
    """
    if name is not None:
        deviceless = deviceless_target(name)
        if deviceless is not None:
            return _deviceless(deviceless, "asked for")
        return _cpu("asked for") if name == CPU else _local("asked for")
    if has_accelerator_device() and jax.default_backend() != "cpu":
        return _local("the accelerator of this machine")
    missing = missing_for_deviceless()
    if not missing:
        default = deviceless_target(DEFAULT_GPU)
        assert default is not None
        reason = "no accelerator here, so the default GPU, compiled for without the device"
        return _deviceless(default, reason)
    reason = f"no accelerator here, and no {' and no '.join(missing)} to compile for one ({INSTALL_DEVICELESS})"
    return _cpu(reason)


def choose_running_target(name: str | None) -> ChosenTarget:
    """The device to run a step on: the one asked for, or the best that is there.

    Raises:
        MemprofError: the device asked for need not be there, so nothing runs on it.
    """
    check_can_run(name)
    if name == CPU:
        return _cpu("asked for")
    if not has_accelerator_device():
        reason = "no accelerator here" if name is None else "asked for; the local device is the CPU"
        return _cpu(reason)
    return _local("the accelerator of this machine" if name is None else "asked for")


def _deviceless(target: DevicelessTarget, reason: str) -> ChosenTarget:
    missing = missing_for_deviceless()
    if missing:
        raise MemprofError(
            f"compiling for {target.name} without the device needs {' and '.join(missing)}; install it with"
            f" {INSTALL_DEVICELESS}, or use --target cpu"
        )
    try:
        sharding = xla_adapter.deviceless_sharding(target.config)
    except Exception as error:  # XLA's own errors have no common type
        raise MemprofError(f"XLA does not accept {target.name} as a target: {str(error).splitlines()[0]}") from error
    info = TargetInfo(
        name=target.name,
        description=target.description,
        platform="cuda",
        memory_bytes=target.memory_bytes,
        compute_capability=target.compute_capability,
        reason=reason,
    )
    return ChosenTarget(info=info, device=jax.local_devices(backend="cpu")[0], sharding=sharding)


def _cpu(reason: str) -> ChosenTarget:
    info = TargetInfo(
        name=CPU, description="host CPU", platform="cpu", memory_bytes=None, compute_capability=None, reason=reason
    )
    return ChosenTarget(info=info, device=jax.local_devices(backend="cpu")[0], sharding=None)


def _local(reason: str) -> ChosenTarget:
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return _cpu(f"{reason}; the local device is the CPU")
    stats = device.memory_stats() or {}
    info = TargetInfo(
        name=LOCAL,
        description=device.device_kind,
        platform="cuda" if device.platform == "gpu" else device.platform,
        memory_bytes=stats.get("bytes_limit"),
        compute_capability=getattr(device, "compute_capability", None),
        reason=reason,
    )
    return ChosenTarget(info=info, device=device, sharding=None)
