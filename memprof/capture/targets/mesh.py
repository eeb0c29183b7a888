"""Meshes of devices that are not there: a `jax.sharding.Mesh`, and the target that it was made for.

Arguments whose shardings lie on such a mesh make it the target of their step. Which target a mesh is of is known by its
devices: those of one topology have a client of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from memprof.analysis.capture import Target, Topology
from memprof.capture.step import StepSpec
from memprof.capture.step_checks import shown
from memprof.capture.targets.choose import Devices, choose_target, deviceless_devices, devices_of, spare_missing_devices
from memprof.capture.targets.resolve import resolve
from memprof.errors import MemprofError

_TARGETS: dict[Any, Target] = {}  # by the client of their devices


def mesh(
    target: str | Path,
    axes: Mapping[str, int],
    *,
    hosts: int = 1,
    axis_types: Sequence[AxisType] | None = None,
) -> Mesh:
    """A mesh of GPUs that need not be there, to put the shardings of a step's arguments on.

        mesh = memprof.mesh("h100-80gb", {"fsdp": 4, "tp": 2})
        sharding = jax.sharding.NamedSharding(mesh, jax.P("fsdp", "tp"))
        memprof.profile(step, jax.ShapeDtypeStruct((4096, 4096), "bfloat16", sharding=sharding))

    Args:
        target: a GPU of `memprof list targets`, or the path of an exported `gpu_target_config.pbtxt`.
        axes: the size of each axis by its name, in the mesh's order.
        hosts: on how many hosts the devices are, each with equally many.
        axis_types: as in `jax.make_mesh`, one for each axis; None: all `Auto`.

    Raises:
        MemprofError: a mistake in what was asked for, in one sentence.
    """
    num_devices = _num_devices(axes)
    if not isinstance(hosts, int) or isinstance(hosts, bool) or hosts < 1 or num_devices % hosts:
        raise MemprofError(
            f"hosts is {shown(hosts)}, but {num_devices} devices were to be shared out evenly: give a divisor of"
            f" {num_devices}"
        )
    if axis_types is not None and len(axis_types) != len(axes):
        raise MemprofError(f"there are {len(axis_types)} axis types for {len(axes)} axes: give one for each")
    if not isinstance(target, (str, Path)):
        raise MemprofError(f"target is {shown(target)}, but the name of a GPU or the path of its file was expected")
    topology = Topology(num_devices=num_devices, num_hosts=hosts, axes=dict(axes))
    chosen = resolve(str(target), topology)
    if not chosen.is_deviceless:
        raise MemprofError(
            f"a mesh of devices that are not there is of GPUs, and '{target}' is none: choose one of"
            " `memprof list targets`"
        )
    spare_missing_devices()
    devices = np.array(deviceless_devices(chosen)).reshape(tuple(axes.values()))
    made = Mesh(devices, tuple(axes), axis_types=None if axis_types is None else tuple(axis_types))
    _TARGETS[made.devices.flat[0].client] = chosen
    return made


def target_of_step(spec: StepSpec, asked: Target | None, *, runs: bool = False) -> Target:
    """What a step is compiled for: the mesh that the shardings of its arguments lie on, else what was asked for.

    Args:
        asked: the target that the user asked for.
        runs: whether steps are to run on it.

    Raises:
        MemprofError: the mesh is none of `mesh`, there are several, or another target is asked for beside it.
    """
    found = _mesh_of(spec)
    if found is None:
        return choose_target(asked, runs=runs)
    target = _target_of(found)
    if runs:
        raise MemprofError("the step is sharded over devices that are not there, so it cannot run: leave out the steps")
    if asked is not None:
        raise MemprofError(
            f"the arguments of the step lie on a mesh of {target.topology.num_devices} {target.name}, which is their"
            " target: leave out the other one"
        )
    return target


def devices_of_step(spec: StepSpec, target: Target) -> Devices:
    """The devices of a step's target: those of its own mesh where it has one.

    Raises:
        MemprofError: see `devices_of`.
    """
    return devices_of(target, _mesh_of(spec))


def _target_of(mesh: Mesh) -> Target:
    target = _TARGETS.get(mesh.devices.flat[0].client)
    if target is None:
        raise MemprofError(
            f"the step is sharded over {mesh.size} devices of this machine, and memprof compiles for devices that are"
            f" not there: put the shardings of its arguments on memprof.mesh('h100-80gb', {dict(mesh.shape)})"
        )
    if mesh.size != target.topology.num_devices:
        raise MemprofError(
            f"the step is sharded over {mesh.size} of the {target.topology.num_devices} devices that memprof.mesh gave:"
            f" ask it for {mesh.size}"
        )
    return replace(target, topology=replace(target.topology, axes=dict(mesh.shape)))


def _mesh_of(spec: StepSpec) -> Mesh | None:
    leaves = jax.tree.leaves((spec.args, dict(spec.kwargs)))
    shardings = (getattr(leaf, "sharding", None) for leaf in leaves)
    meshes = {each.mesh for each in shardings if isinstance(each, NamedSharding) and isinstance(each.mesh, Mesh)}
    several = [each for each in meshes if each.size > 1]
    if len({tuple(each.devices.flat) for each in several}) > 1:
        raise MemprofError(
            f"the arguments of the step lie on {len(several)} meshes of other devices: put all of them on one"
        )
    return several[0] if several else None


def _num_devices(axes: Mapping[str, int]) -> int:
    if not isinstance(axes, Mapping) or not axes:
        raise MemprofError(f"axes is {shown(axes)}, but the size of each axis by its name was expected: {{'fsdp': 8}}")
    for name, size in axes.items():
        if not isinstance(name, str) or not name:
            raise MemprofError(f"{shown(name)} is the name of an axis, but a text was expected")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise MemprofError(f"the axis {name} has the size {shown(size)}, but a number of devices was expected")
    return prod(axes.values())
