"""What JAX knows of a target: which the local device is, and the devices to compile for. Starts JAX's backends."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from memprof.analysis.memory.verdict import card_bytes
from memprof.analysis.records.capture import Target
from memprof.capture.pool_settings import pool_settings
from memprof.capture.targets.gpu import gpus, speeds_of_kind
from memprof.capture.targets.resolve import DEFAULT_GPU, LOCAL, cpu, has_accelerator_device, of_gpu
from memprof.capture.targets.tpu import chips_of, host_bounds, tpu_of_kind, tpus
from memprof.capture.xla import xla_adapter
from memprof.capture.xla.cuda_tools import INSTALL_DEVICELESS, missing_for_deviceless
from memprof.capture.xla.deviceless import COMPILERS
from memprof.errors import MemprofError

_ACCELERATOR = "the accelerator of this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """A target as JAX sees it.

    Attributes:
        device: the local device that JAX traces for.
        sharding: on several devices, or on one that need not be there, a copy on each; None: the step is compiled for
            `device`.
        written_for: the mesh that the step itself names where its devices are others: those of this machine, or none.
        here: those of this process that the step runs on, in the mesh's order; empty where they need not be there.
    """

    device: jax.Device
    sharding: NamedSharding | None
    written_for: Mesh | AbstractMesh | None = None
    here: tuple[jax.Device, ...] = ()

    @property
    def on_device(self) -> jax.sharding.Sharding:
        """A sharding on the devices that the step is compiled for."""
        return self.sharding or jax.sharding.SingleDeviceSharding(self.device)

    @property
    def as_written(self) -> jax.sharding.Sharding:
        """A sharding on the devices that the step names: a copy on each of them."""
        return self.on_device if self.written_for is None else NamedSharding(self.written_for, PartitionSpec())

    @property
    def named(self) -> Set[jax.Device]:
        """The devices that the step may name."""
        return frozenset() if isinstance(self.written_for, AbstractMesh) else self.as_written.device_set


def spare_devices(asked: Target | None) -> None:
    """Tell JAX, before it starts its backends, to leave devices alone that a target does not need.

    Starting a device's backend takes hold of it. This is for a process that does nothing else.
    """
    if (asked is not None and asked.platform) or not has_accelerator_device():
        jax.config.update("jax_platforms", "cpu")


def choose_target(asked: Target | None, *, runs: bool = False) -> Target:
    """The target that the user asked for, or the best there is.

    Where none is asked for: the local accelerator if there is one; else, for a step that is not to run, an H100 if what
    compiling for one takes is installed; else the CPU.

    Args:
        runs: whether steps are to run on it.
    """
    with xla_adapter.PROCESS_WIDE:  # JAX starts its backends
        if asked is not None:
            return asked if asked.platform else _local(asked.reason)
        if runs:
            return _local(_ACCELERATOR) if has_accelerator_device() else cpu("no accelerator here")
        if has_accelerator_device() and jax.default_backend() != "cpu":
            return _local(_ACCELERATOR)
        missing = missing_for_deviceless()
        if missing:
            install = f"no {' and no '.join(missing)} to compile for one ({INSTALL_DEVICELESS})"
            return cpu(f"no accelerator here, and {install}")
        reason = "no accelerator here, so the default GPU, compiled for without the device"
        return of_gpu(gpus()[DEFAULT_GPU], reason)


def devices_of(target: Target, mesh: Mesh | None = None) -> Devices:
    """The devices of a target.

    Args:
        mesh: that the step's own shardings lie on.

    Raises:
        MemprofError: what it takes to compile for it is not installed, or XLA does not accept it.
    """
    with xla_adapter.PROCESS_WIDE:  # JAX starts its backends and registers its plugins
        if target.is_deviceless:
            axes = target.topology.axes or {"device": target.topology.num_devices}
            mesh = mesh or Mesh(np.array(deviceless_devices(target)).reshape(tuple(axes.values())), tuple(axes))
            host = jax.local_devices(backend="cpu")[0]
            return Devices(device=host, sharding=NamedSharding(mesh, PartitionSpec()))
        if mesh is not None:
            here = tuple(mesh.local_devices)
            return Devices(device=here[0], sharding=NamedSharding(mesh, PartitionSpec()), here=here)
        device = jax.local_devices(backend=None if target.name == LOCAL else "cpu")[0]
        return Devices(device=device, sharding=None, here=(device,))


def deviceless_devices(target: Target) -> list[jax.Device]:
    """The devices of a target that need not be there.

    Raises:
        MemprofError: what it takes to compile for it is not installed, or XLA does not accept it.
    """
    compiler = COMPILERS[target.platform]
    missing = compiler.missing()
    if missing:
        raise MemprofError(
            f"compiling for {target.name} without the device needs {' and '.join(missing)}; install it with"
            f" {compiler.install}, or use --target cpu"
        )
    try:
        if target.platform == "tpu":
            return _tpu_devices(target)
        return xla_adapter.gpu_devices(target)
    except Exception as error:  # XLA's own errors have no common type
        raise MemprofError(f"XLA does not accept {target.name} as a target: {str(error).splitlines()[0]}") from error


def _tpu_devices(target: Target) -> list[jax.Device]:
    """The devices of a target, which need not be there."""
    tpu, topology = tpus()[target.compiler_config], target.topology
    chips = topology.chips or chips_of(tpu, topology)
    options: dict[str, Any] = {"chips_per_host_bounds": host_bounds(chips), **tpu.options}
    if topology.num_slices > 1:
        options["num_slices"] = topology.num_slices
    devices = xla_adapter.tpu_devices(f"{tpu.name}:{'x'.join(map(str, chips))}", options)
    return devices[: topology.num_devices]  # a chip of several devices can be asked for one of them


def _local(reason: str) -> Target:
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return cpu(f"{reason}; the local device is the CPU")
    limit_bytes = (device.memory_stats() or {}).get("bytes_limit")
    tpu = tpu_of_kind(device.device_kind)
    target = Target(
        name=LOCAL,
        description=device.device_kind,
        platform="cuda" if device.platform == "gpu" else device.platform,
        memory_bytes=limit_bytes,
        compute_capability=getattr(device, "compute_capability", None),
        reason=reason,
        speeds=tpu.speeds if tpu else speeds_of_kind(device.device_kind),
        chip_bytes=tpu.chip_bytes if tpu else {},
        kernel_vmem_bytes=tpu.kernel_vmem_bytes if tpu else 0,
    )
    if target.platform != "cuda" or limit_bytes is None:
        return target
    # JAX tells the size of its pool alone, which is this share of the card.
    return replace(target, memory_bytes=card_bytes(limit_bytes, pool_settings(target)))
