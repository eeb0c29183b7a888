"""Meshes of absent devices: a `jax.sharding.Mesh`, and the target that it was made for.

If the shardings of a step lie on such a mesh, the mesh determines the target. The devices identify the target of a
mesh, because each topology has its own client.

A step may also be written for another mesh: of the CPU's devices, or a `jax.sharding.AbstractMesh`. It is traced and
lowered unchanged. The lowered program contains the sizes of the axes but no devices, and is then compiled for as many
devices of the target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from memprof.analysis.records.capture import Target, Topology
from memprof.analysis.records.device_family import family_of
from memprof.errors import MemprofError
from memprof.sources.jax.own_attributes import own
from memprof.sources.jax.targets.choose import Devices, choose_target, deviceless_devices, devices_of
from memprof.sources.jax.targets.families import is_host
from memprof.sources.jax.targets.resolve import (
    DEFAULT_GPU,
    DEVICES,
    OF_PROJECT,
    AskedTarget,
    LocalDevice,
    default_target,
    no_gpu,
    resolve_or_local,
    topology_of,
)
from memprof.sources.jax.tracing.jit_adapter import context_meshes, sharding_mistake
from memprof.sources.jax.tracing.jitting import shardings_of_jit
from memprof.sources.jax.tracing.step import StepSpec
from memprof.sources.jax.tracing.step_checks import shown

_MAX_AXES = 64  # NumPy's limit of dimensions; a mesh is a NumPy array
_TARGETS: dict[Any, Target] = {}  # targets by the client of their devices


def mesh(
    target: str | Path,
    axes: Mapping[str, int],
    *,
    hosts: int = 1,
    axis_types: Sequence[AxisType] | None = None,
) -> Mesh:
    """Make a mesh of absent GPUs, for the shardings of a step's arguments.

        mesh = memprof.mesh("h100-80gb", {"fsdp": 4, "tp": 2})
        sharding = jax.sharding.NamedSharding(mesh, jax.P("fsdp", "tp"))
        memprof.profile(step, jax.ShapeDtypeStruct((4096, 4096), "bfloat16", sharding=sharding))

    Args:
        target: a GPU of `memprof list targets`, or the path of an exported `gpu_target_config.pbtxt`.
        axes: the size of each axis by its name, in the mesh's order.
        hosts: the number of hosts; each has equally many devices.
        axis_types: as in `jax.make_mesh`, one for each axis; None: all `Auto`.

    Raises:
        MemprofError: an argument is invalid.
    """
    if not isinstance(axes, Mapping) or not axes:
        raise MemprofError(f"axes is {shown(axes)}, but a mapping from axis names to sizes was expected: {{'fsdp': 8}}")
    for name in axes:
        if not isinstance(name, str) or not name:
            raise MemprofError(f"{shown(name)} names an axis, but a non-empty string was expected")
    if len(axes) > _MAX_AXES:
        raise MemprofError(f"a mesh has at most {_MAX_AXES} axes, not {len(axes)}")
    topology = topology_of(axes, hosts)
    if axis_types is not None and not _are_axis_types(axis_types, len(axes)):
        raise MemprofError(
            f"axis_types is {shown(axis_types)}, but one jax.sharding.AxisType for each of the {len(axes)} axes was"
            f" expected: ({', '.join(['AxisType.Auto'] * min(len(axes), 3))},{' ...' if len(axes) > 3 else ''})"
        )
    if not isinstance(target, (str, Path)):
        raise MemprofError(f"target is {shown(target)}, but the name of a GPU or the path of its file was expected")
    chosen = resolve_or_local(str(target), topology)
    if isinstance(chosen, LocalDevice) or not chosen.is_deviceless:
        raise no_gpu(str(target))
    return _made(chosen, axis_types)


def _are_axis_types(axis_types: object, num_axes: int) -> bool:
    is_sequence = isinstance(axis_types, Sequence) and len(axis_types) == num_axes
    return is_sequence and all(isinstance(each, AxisType) for each in axis_types)  # type: ignore[attr-defined]


def mesh_of(target: AskedTarget) -> Mesh | None:
    """Return the mesh of a target with several devices. If its axes have no names, it has one axis.

    Raises:
        MemprofError: the target is this machine, which has too few devices.
    """
    if target is None or target.topology.num_devices == 1:
        return None
    target = replace(target, topology=_with_axes(target.topology))
    if isinstance(target, Target) and target.is_deviceless:
        return _made(target, None)
    return _mesh_here(target.topology)


def _mesh_here(topology: Topology) -> Mesh:
    devices, num_devices = jax.devices(), topology.num_devices
    if len(devices) < num_devices:
        flag = f": XLA_FLAGS=--xla_force_host_platform_device_count={num_devices} creates that many on the CPU"
        raise MemprofError(
            f"--mesh asks for {num_devices} devices, but there {'is' if len(devices) == 1 else 'are'} only "
            f"{len(devices)} of the platform {devices[0].platform}{flag if is_host(devices[0]) else ''}"
        )
    axes, automatic = topology.axes, (AxisType.Auto,) * len(topology.axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=automatic, devices=devices[:num_devices])


def _with_axes(topology: Topology) -> Topology:
    return replace(topology, axes=topology.axes or {DEVICES: topology.num_devices})


def _made(target: Target, axis_types: Sequence[AxisType] | None) -> Mesh:
    axes = target.topology.axes
    devices = np.array(deviceless_devices(target)).reshape(tuple(axes.values()))
    made = Mesh(devices, tuple(axes), axis_types=None if axis_types is None else tuple(axis_types))
    _TARGETS[made.devices.flat[0].client] = target
    return made


def target_of_step(spec: StepSpec, asked: AskedTarget, *, runs: bool = False) -> Target:
    """Return the target to compile a step for: the user's, with as many devices as the step's mesh.

    Args:
        asked: the target that the user asked for.
        runs: steps will run on it.

    Raises:
        MemprofError: the step names several meshes, or a mesh that does not match the user's target.
    """
    mesh = _mesh_of(spec)
    if mesh is None:
        if asked is not None and asked.topology.num_devices > 1:
            raise MemprofError(
                f"--mesh asks for {asked.topology.num_devices} devices, but the step is not sharded: let the "
                "function that returns it take a parameter mesh, and shard its arguments over that mesh"
            )
        return choose_target(asked, runs=runs)
    made_for = _target_of(mesh)
    if asked is not None and asked.reason == OF_PROJECT and not _can_be(asked, mesh, made_for):
        asked = None
    if made_for is None and (runs or (asked is not None and not asked.is_deviceless)):
        return _target_here(mesh, choose_target(asked, runs=True))
    if runs:
        raise MemprofError("the step is sharded over absent devices, so it cannot run: leave out --steps")
    if made_for is None:
        return _as_many_as(mesh, asked)
    if mesh.size != made_for.topology.num_devices:
        raise MemprofError(
            f"the step is sharded over {mesh.size} of the {made_for.topology.num_devices} devices of memprof.mesh: "
            f"ask it for {mesh.size}"
        )
    if asked is not None and not _is_of(asked, made_for):
        raise MemprofError(
            f"the arguments of the step are on a mesh of {mesh.size} {made_for.name}, which determines the target: "
            "leave out the other target"
        )
    return replace(made_for, topology=replace(made_for.topology, axes=dict(mesh.shape)))


def devices_of_step(spec: StepSpec, target: Target) -> Devices:
    """Return the devices of a step's target; if the step's mesh consists of such devices, those of the mesh.

    Raises:
        MemprofError: see `devices_of`.
    """
    mesh = _mesh_of(spec)
    if mesh is None or _target_of(mesh) is not None or not target.is_deviceless:
        return devices_of(target, mesh)
    return replace(devices_of(target), written_for=mesh)


def _target_of(mesh: Mesh | AbstractMesh) -> Target | None:
    """Return the target that `mesh` made a mesh for, or None if the mesh has other devices or no devices."""
    return _TARGETS.get(mesh.devices.flat[0].client) if isinstance(mesh, Mesh) else None


def _is_of(asked: Target | LocalDevice, made_for: Target) -> bool:
    """Whether a mesh has the user's target. The user may omit the number of devices."""
    is_as_many = asked.topology.num_devices == 1 or _with_axes(asked.topology) == made_for.topology
    return asked.name == made_for.name and is_as_many


def _can_be(default: Target | LocalDevice, mesh: Mesh | AbstractMesh, made_for: Target | None) -> bool:
    """Whether the project's default target fits a step that names a mesh."""
    if default.topology.num_devices > 1:
        return True  # --mesh gives the number of devices
    if made_for is not None:
        return _is_of(default, made_for)
    if isinstance(default, LocalDevice):
        return False
    return default.is_deviceless or (isinstance(mesh, Mesh) and mesh.devices.flat[0].platform == default.platform)


def _target_here(mesh: Mesh | AbstractMesh, target: Target) -> Target:
    """Return the target of a mesh of present devices, on this machine and others of the same job.

    Args:
        target: one of these devices as a target.
    """
    if isinstance(mesh, AbstractMesh):
        raise MemprofError(
            f"the step is sharded over an abstract mesh of {mesh.size} devices, which does not name local devices: "
            "create it with jax.make_mesh, or compile it for absent GPUs with --target"
        )
    devices = list(mesh.devices.flat)
    if is_host(devices[0]) != family_of(target.platform).is_host:
        raise MemprofError(
            f"the step is sharded over {mesh.size} devices of the platform {devices[0].platform}, but {target.name} "
            "was given as target: leave out the target"
        )
    if not mesh.local_devices:
        raise MemprofError(
            f"process {jax.process_index()} of {jax.process_count()} has no device in the mesh that the step is "
            f"sharded over: create it from all {jax.device_count()} devices, or start fewer processes"
        )
    hosts = {device.process_index for device in devices}
    topology = Topology(num_devices=mesh.size, num_hosts=len(hosts), axes=dict(mesh.shape))
    return replace(target, topology=topology)


def _as_many_as(mesh: Mesh | AbstractMesh, asked: AskedTarget) -> Target:
    """Return the user's target in place of a mesh's devices. The program contains only their number and axes."""
    on_this_machine = isinstance(mesh, Mesh) and not is_host(mesh.devices.flat[0])
    if asked is None and not on_this_machine:
        asked = default_target("the default GPU, instead of the devices of the step's mesh")
    if not isinstance(asked, Target) or not asked.is_deviceless:
        raise MemprofError(
            f"the step is sharded over {mesh.size} devices, and memprof compiles such steps for absent GPUs: choose "
            f"one of `memprof list targets` with --target or target=, for example {DEFAULT_GPU}"
        )
    if asked.topology.num_devices not in (1, mesh.size):
        raise MemprofError(
            f"the step is sharded over {mesh.size} devices, but {asked.topology.num_devices} were asked for: make "
            "both equal"
        )
    return replace(asked, topology=replace(asked.topology, num_devices=mesh.size, axes=dict(mesh.shape)))


def _mesh_of(spec: StepSpec) -> Mesh | AbstractMesh | None:
    """Return the multi-device mesh that a step names: in its arguments, its jit, or around it with `jax.set_mesh`.

    Raises:
        MemprofError: the step names several meshes with different devices or sizes, a mesh has two axes of one name, or
            an argument lies on an axis that the mesh does not have.
    """
    leaves = jax.tree.leaves((spec.args, dict(spec.kwargs)))
    shardings = [*map(_sharding_of, leaves), *shardings_of_jit(spec)]
    meshes = [each.mesh for each in shardings if isinstance(each, NamedSharding)]
    several = [each for each in dict.fromkeys([*meshes, *context_meshes()]) if each.size > 1]
    for each in several:
        twice = [name for name, times in Counter(each.axis_names).items() if times > 1]
        if twice:
            raise MemprofError(f"two axes of the step's mesh are called {twice[0]}: give each a unique name")
    of_devices = [each for each in several if isinstance(each, Mesh)]
    num_kinds = max(len({tuple(each.devices.flat) for each in of_devices}), len({each.size for each in several}))
    if num_kinds > 1:
        raise MemprofError(f"the shardings of the step use {num_kinds} meshes of different devices: use a single mesh")
    return next(iter(of_devices or several), None)


def _sharding_of(leaf: Any) -> Any:
    try:
        return own(leaf, "sharding")
    except ValueError as error:  # a shape with only P(...) as its sharding looks up the active mesh here
        mistake = sharding_mistake(error)
        if mistake is None:
            raise
        raise MemprofError(f"the sharding of an argument of the step does not match: {mistake}") from error
