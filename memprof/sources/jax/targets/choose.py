"""A target in terms of JAX: the local device, and the devices to compile for. Starts JAX's backends."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from memprof.analysis.memory.verdict import card_bytes
from memprof.analysis.records.capture import Target
from memprof.errors import MemprofError
from memprof.sources.jax.targets.families import compiler_of, family_of_device
from memprof.sources.jax.targets.resolve import (
    LOCAL,
    AskedTarget,
    LocalDevice,
    cpu,
    default_target,
    has_accelerator_device,
)
from memprof.sources.jax.xla import xla_adapter
from memprof.sources.pool_settings import pool_settings

_ACCELERATOR = "the accelerator of this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """A target as JAX sees it.

    Attributes:
        device: the local device that JAX traces for.
        sharding: a replicated sharding over several devices, or over an absent one; None: the step is compiled for
            `device`.
        written_for: the step's own mesh, if it has other devices (of this machine, or none).
        here: the devices of this process that the step runs on, in the mesh's order; empty for absent devices.
    """

    device: jax.Device
    sharding: NamedSharding | None
    written_for: Mesh | AbstractMesh | None = None
    here: tuple[jax.Device, ...] = ()

    @property
    def on_device(self) -> jax.sharding.Sharding:
        """A replicated sharding over the devices that the step is compiled for."""
        return self.sharding or jax.sharding.SingleDeviceSharding(self.device)

    @property
    def as_written(self) -> jax.sharding.Sharding:
        """A replicated sharding over the devices that the step names."""
        return self.on_device if self.written_for is None else NamedSharding(self.written_for, PartitionSpec())

    @property
    def named(self) -> Set[jax.Device]:
        """The devices that the step may name."""
        return frozenset() if isinstance(self.written_for, AbstractMesh) else self.as_written.device_set


def spare_devices(asked: AskedTarget) -> None:
    """Tell JAX, before it starts its backends, not to initialise devices that a target does not need.

    Starting a device's backend claims the device. Call this only in a process that does nothing else.
    """
    if isinstance(asked, Target) or not has_accelerator_device():
        jax.config.update("jax_platforms", "cpu")


def choose_target(asked: AskedTarget, *, runs: bool = False) -> Target:
    """Return the target that the user asked for, or the best available one.

    The default is the local accelerator if there is one. Otherwise it is an H100, if the step is not run and the
    compiler for one is installed, and else the CPU.

    Args:
        runs: steps will run on it.
    """
    with xla_adapter.PROCESS_WIDE:  # JAX starts its backends
        if asked is not None:
            return _local(asked.reason) if isinstance(asked, LocalDevice) else asked
        if runs:
            return _local(_ACCELERATOR) if has_accelerator_device() else cpu("no local accelerator")
        if has_accelerator_device() and jax.default_backend() != "cpu":
            return _local(_ACCELERATOR)
        default = default_target("no local accelerator, so compiled for the default GPU without the device")
        compiler = compiler_of(default)
        missing = compiler.missing() if compiler is not None else ()
        if compiler is None or not missing:
            return default
        install = f"no {' and no '.join(missing)} to compile for one ({compiler.install})"
        return cpu(f"no local accelerator, and {install}")


def devices_of(target: Target, mesh: Mesh | None = None) -> Devices:
    """Return the devices of a target.

    Args:
        mesh: the mesh of the step's own shardings.

    Raises:
        MemprofError: its compiler is not installed, or XLA rejects the target.
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
    """Return the absent devices of a target.

    Raises:
        MemprofError: its compiler is not installed, or XLA rejects the target.
    """
    compiler = compiler_of(target)
    assert compiler is not None
    missing = compiler.missing()
    if missing:
        raise MemprofError(
            f"compiling for {target.name} without the device needs {' and '.join(missing)}; install it with"
            f" {compiler.install}, or use --target cpu"
        )
    try:
        return compiler.devices(target)
    except Exception as error:  # XLA's own errors have no common type
        raise MemprofError(f"XLA does not accept {target.name} as a target: {str(error).splitlines()[0]}") from error


def _local(reason: str) -> Target:
    device = jax.local_devices()[0]
    family = family_of_device(device)
    if family.facts.is_host:
        return cpu(f"{reason}; the local device is the CPU")
    limit_bytes = (device.memory_stats() or {}).get("bytes_limit")
    known = family.device_of_kind(device.device_kind)
    described = None if known is None else known.target(reason)
    target = Target(
        name=LOCAL,
        description=device.device_kind,
        platform=family.facts.platform,
        memory_bytes=limit_bytes,
        compute_capability=getattr(device, "compute_capability", None),
        reason=reason,
        speeds=described.speeds if described else None,
        chip_bytes=described.chip_bytes if described else {},
        kernel_vmem_bytes=described.kernel_vmem_bytes if described else 0,
    )
    if not family.facts.has_share_pool or limit_bytes is None:
        return target
    # JAX reports only the size of its pool, which is this share of the card.
    return replace(target, memory_bytes=card_bytes(limit_bytes, pool_settings(target)))
