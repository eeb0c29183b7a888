"""Parsing of `--target` and related options to a target. Does not use JAX, so that mistakes are found at once."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from memprof.analysis.records.capture import Target, Topology
from memprof.analysis.records.device_family import all_families
from memprof.errors import MemprofError
from memprof.sources.jax.targets.families import catalogue, families
from memprof.sources.jax.targets.family import TargetFamily
from memprof.sources.jax.tracing.step_checks import shown

LOCAL, CPU = "local", "cpu"
DEFAULT_GPU = "h100-80gb"
ASKED_FOR = "asked for"
OF_PROJECT = "the default of this project"
DEVICES = "devices"  # the axis of a mesh without named axes
_SIZE = "[0-9]{1,9}"
_MODEL = re.compile(r"[a-z]+\d+[a-z]*|\d{3,}(?!\d*gb)")  # the model in a name: `a6000`, `h100`, `4090`
_MAX_DEVICES = 2**16  # XLA makes a topology that lists each of them


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDevice:
    """The device of this machine, before it is a `Target`: only JAX knows it, and JAX starts in another process.

    Attributes:
        reason: as in `Target`.
        topology: the number of its devices and their arrangement.
    """

    reason: str = ASKED_FOR
    topology: Topology = field(default_factory=Topology)

    @property
    def name(self) -> str:
        """The name on the command line."""
        return LOCAL

    @property
    def is_deviceless(self) -> bool:
        """As in `Target`: the device is present."""
        return False


# The target of a command, before the step is known. None means the best available one. `target_of_step` completes it.
AskedTarget = Target | LocalDevice | None


def if_known(asked: AskedTarget) -> Target | None:
    """Return the target that is known before JAX starts; None if JAX decides it."""
    return asked if isinstance(asked, Target) else None


class ProjectTarget(str):
    """The name of a project's default target. It is ignored if it does not fit the other options."""

    __slots__ = ()


def catalogued() -> list[str]:
    """Return the names of all targets."""
    names = [name for name in catalogue() if name != CPU]
    return [*names, LOCAL, CPU]


def resolve(name: str, topology: Topology = Topology()) -> Target:  # noqa: B008 - a value that does not change
    """Return the target of a name.

    Args:
        name: the user's text: `h100-80gb` or `v5e`, in upper or lower case, or an unambiguous prefix of whole words
            such as `V100`; `path/to/gpu_target_config.pbtxt`, or `cpu`.
        topology: the number and arrangement of the devices.

    Raises:
        MemprofError: there is no such target, the file does not describe one, or it is the local device.
    """
    if name.lower() == LOCAL:
        raise MemprofError(f"only JAX knows the {LOCAL} device: name a device of `memprof list targets`")
    if name in catalogue():
        return catalogue()[name].target(ASKED_FOR, topology)
    if os.path.isfile(name):  # `Path` would raise an error if the name is too long
        return read_file(name, topology)
    known = catalogued()
    asked = name.lower()
    meant = [asked] if asked in known else [other for other in known if other.startswith(f"{asked}-")]
    if len(meant) == 1:
        return resolve(meant[0], topology)
    several = meant or [other for other in known if asked and other.startswith(asked)]
    if len(several) > 1:
        raise MemprofError(f"'{name}' matches several targets: choose from {', '.join(several)}")
    close = (
        [other for other in known if asked and other.startswith(asked)]
        or [other for other in known if not set(asked.split("-")).isdisjoint(_MODEL.findall(other))]  # a6000-48gb
        or difflib.get_close_matches(asked, known, 1)
    )
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    raise MemprofError(
        f"There is no target '{name}'{hint}: choose from {', '.join(known)}, or give the path of a"
        " gpu_target_config.pbtxt that XLA exported on the real machine."
    )


def resolve_or_local(name: str, topology: Topology = Topology()) -> Target | LocalDevice:  # noqa: B008
    """Return the target of a name, as `resolve` does, or the local device."""
    return LocalDevice(topology=topology) if name.lower() == LOCAL else resolve(name, topology)


def resolve_asked(
    name: str | None,
    *,
    runs: bool = False,
    mesh: str | None = None,
    hosts: int | None = None,
    chips: str | None = None,
    slices: int | None = None,
) -> AskedTarget:
    """Return the target that the user asked for.

    Args:
        runs: steps will run on it.
        mesh: the value of `--mesh`: `fsdp=4,tp=2`, or a number such as `8`; a row's techniques then decide the axes.
        hosts: the number of hosts of the mesh's devices.
        chips: the value of `--topology`, such as `2x4`.
        slices: the number of TPU slices of the mesh's devices.

    Raises:
        MemprofError: there is no such target or mesh, or steps must run but the target can only be compiled for.
    """
    if chips is not None or slices is not None:
        mesh, slice_ = _slice(name, mesh, chips, slices or 1)
        topology = replace(read_mesh(mesh, 1), num_slices=slice_.num_slices, chips=slice_.chips)
    else:
        topology = Topology() if mesh is None else read_mesh(mesh, hosts or 1)
    target = resolve_or_local(name, topology) if name is not None else None
    if target is not None and isinstance(name, ProjectTarget):
        yields = mesh is not None and not target.is_deviceless
        target = None if yields else replace(target, reason=OF_PROJECT)
    if mesh is not None and target is None:
        reason = "the default GPU, compiled for without the device"
        target = LocalDevice(topology=topology) if runs else default_target(reason, topology)
    if mesh is not None and target is not None and not target.is_deviceless:
        if not runs:
            raise no_gpu(target.name)
        target = replace(target, topology=topology)  # as many present devices
    if runs and target is not None and target.is_deviceless:
        what = name if mesh is None else f"--mesh {mesh}"
        raise MemprofError(
            f"{what} is a target to compile for, but a step runs only on a local device: use --target {LOCAL} or "
            f"{CPU}, or leave out --steps"
        )
    return target


def _slice(name: str | None, mesh: str | None, chips: str | None, num_slices: int) -> tuple[str, Topology]:
    """Return the mesh of one or several TPU slices, and its topology.

    Raises:
        MemprofError: the target is not a TPU, or has no such slice.
    """
    what = f"--topology {chips}" if chips is not None else f"--slices {num_slices}"
    device = catalogue().get((name or "").lower())
    devices_per_chip = device.devices_per_chip if device is not None else None
    if devices_per_chip is None:
        sliced = {each.facts.devices: each for each in families() if _forms_slices(each)}
        names = [name for family in sliced.values() for name in family.catalogue()]
        raise MemprofError(
            f"{what} applies to {' and '.join(sliced)}: choose one with --target, from {', '.join(names)}"
        )
    if chips is None:
        if mesh is None:
            raise MemprofError(f"{what} divides the devices of a mesh: give their number, --mesh 8")
        return mesh, Topology(num_slices=num_slices)
    if not re.fullmatch(rf"{_SIZE}(x{_SIZE})*", chips) or "0" in chips.split("x"):
        raise MemprofError(f"{what} is not a topology: write the number of chips along each dimension, --topology 2x4")
    sizes = tuple(map(int, chips.split("x")))
    return mesh or str(prod(sizes) * devices_per_chip * num_slices), Topology(num_slices=num_slices, chips=sizes)


def _forms_slices(family: TargetFamily) -> bool:
    return any(device.devices_per_chip is not None for device in family.catalogue().values())


def read_mesh(text: str, hosts: int = 1) -> Topology:
    """Parse a topology: `fsdp=4,tp=2`, or a number of devices with undecided axes.

    Raises:
        MemprofError: the text is not a topology.
    """
    if re.fullmatch(_SIZE, text.strip()):
        return topology_of({"": int(text)}, hosts)
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = (each.strip() for each in part.partition("="))
        if not (equals and name.isidentifier() and re.fullmatch(_SIZE, size)):
            raise MemprofError(
                f"--mesh {text} is not a mesh: write the size of each axis, --mesh fsdp=4,tp=2, or a number of devices,"
                " --mesh 8"
            )
        if name in axes:
            raise MemprofError(f"--mesh {text} has the axis {name} twice: give each axis one size")
        axes[name] = int(size)
    return topology_of(axes, hosts)


def topology_of(axes: Mapping[str, int], hosts: int) -> Topology:
    """Return the topology of a mesh.

    Args:
        axes: the size of each axis by its name, in the mesh's order. A single unnamed axis means undecided axes.
        hosts: the number of hosts; each has equally many devices.

    Raises:
        MemprofError: there is no such mesh.
    """
    for name, size in axes.items():
        if not _is_number(size):
            what = f"the axis {name}" if name else "the mesh"
            raise MemprofError(f"{what} has the size {shown(size)}, but a number of devices was expected")
    num_devices = prod(axes.values())
    if num_devices > _MAX_DEVICES:
        raise MemprofError(f"a mesh of {num_devices:,} devices is more than the {_MAX_DEVICES:,} that are compiled for")
    if not _is_number(hosts) or num_devices % hosts:
        raise MemprofError(
            f"hosts is {shown(hosts)}, but {num_devices} devices must be divided evenly: give a divisor of"
            f" {num_devices}"
        )
    return Topology(num_devices=num_devices, num_hosts=hosts, axes={} if "" in axes else dict(axes))


def no_gpu(name: str) -> MemprofError:
    """Return the error for a target that cannot form a mesh."""
    return MemprofError(
        f"a mesh of absent devices needs a GPU or a TPU, but '{name}' is neither: choose one of `memprof list targets`"
    )


def mesh_option(topology: Topology) -> str:
    """Return the value of `--mesh` for a topology; empty for one device."""
    axes = ",".join(f"{name}={size}" for name, size in topology.axes.items())
    return axes or (str(topology.num_devices) if topology.num_devices > 1 else "")


def option_of(target: Target | LocalDevice) -> str:
    """Return the value of `--target` for a target."""
    return LOCAL if isinstance(target, LocalDevice) else target.file or target.name


def cpu(reason: str) -> Target:
    """Return the host as a target."""
    return catalogue()[CPU].target(reason)


def default_target(reason: str, topology: Topology = Topology()) -> Target:  # noqa: B008
    """Return the default target for machines without an accelerator."""
    return catalogue()[DEFAULT_GPU].target(reason, topology)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def has_accelerator_device() -> bool:
    """Whether the system has a device that JAX may be able to use.

    JAX itself is not asked, because that would start its backends. After a failed attempt to use CUDA, JAX can no
    longer compile for an absent GPU.
    """
    return any(True for family in all_families() if family.device_files for _ in Path("/dev").glob(family.device_files))


def read_file(name: str, topology: Topology) -> Target:
    """Return the target that a file describes, of any family.

    Raises:
        MemprofError: the file cannot be read, or is not a target; the message is the first family's.
    """
    errors = []
    for family in families():
        if family.read_file is not None:
            try:
                return family.read_file(name, topology)
            except MemprofError as error:
                errors.append(error)
    raise errors[0]
