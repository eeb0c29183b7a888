"""The axes of a mesh: what each divides in a training step, and their sizes if the user gives none.

Each technique that divides something names its axis, `Technique.axis`. On the command line `--mesh fsdp=4,tp=2` sets
the sizes of the axes. `--mesh 8` leaves the sizes to each row, because rows of a comparison can use different axes: see
`split`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from memprof.errors import MemprofError
from memprof.sources.jax.targets.resolve import AskedTarget
from memprof.workloads.technique import AppliedTechnique
from memprof.workloads.train_config import TrainConfig

DP: Final = "dp"  # data
FSDP: Final = "fsdp"
SP: Final = "sp"  # sequence
TP: Final = "tp"  # tensor
PP: Final = "pp"  # pipeline
EP: Final = "ep"  # experts
# From the outermost to the innermost: the axes that communicate most connect neighbouring devices of one host.
_ORDER = (PP, DP, FSDP, EP, SP, TP)
# The first of these that a row uses gets all remaining devices.
_LARGEST = (FSDP, DP, EP, PP, SP, TP)
_SMALL = 2


def split(num_devices: int, axes: Iterable[str]) -> dict[str, int]:
    """Return the size of each axis of a mesh: all axes get 2, except one that gets all remaining devices.

    That axis is `fsdp` if it is used, else `dp`, `ep`, `pp`, `sp` or `tp`: 8 devices are `fsdp=4, tp=2`.

    Raises:
        MemprofError: the number of devices is too small, or not a multiple of the other axes' sizes.
    """
    used = sorted(set(axes), key=_ORDER.index)
    if not used:
        return {}
    others = _SMALL ** (len(used) - 1)
    if num_devices % others:
        raise MemprofError(
            f"--mesh {num_devices} cannot be split over the axes {', '.join(used)}: give a multiple of {others}, or "
            f"the size of each axis, for example --mesh {','.join(f'{axis}={_SMALL}' for axis in used)}."
        )
    largest = min(used, key=_LARGEST.index)
    return {axis: num_devices // others if axis == largest else _SMALL for axis in used}


def on_mesh(target: AskedTarget, techniques: Sequence[AppliedTechnique]) -> AskedTarget:
    """Return the target with the axes of its mesh. The techniques decide the axes that the user has not given.

    Raises:
        MemprofError: see `split`.
    """
    if target is None or target.topology.num_devices == 1 or target.topology.axes:
        return target
    axes = split(target.topology.num_devices, axes_of(techniques))
    return replace(target, topology=replace(target.topology, axes=axes))


def axes_of(techniques: Iterable[AppliedTechnique]) -> tuple[str, ...]:
    """Return the axes that techniques divide over."""
    return tuple(each.technique.axis for each in techniques if each.technique.axis is not None)


def check_axis(applied: AppliedTechnique, axes: Mapping[str, int]) -> None:
    """Raise `MemprofError` if the mesh has no axis for a technique, or there is no mesh."""
    axis = applied.technique.axis
    if axis is None or axis in axes:
        return
    if not axes:
        raise MemprofError(
            f"Technique '{applied.label}' shards over several devices, but there is only one: give --mesh 8, for "
            "example."
        )
    mesh = ",".join(f"{name}={size}" for name, size in axes.items())
    raise MemprofError(
        f"Technique '{applied.label}' shards over the axis {axis}, which --mesh {mesh} lacks: add {axis}={_SMALL}, "
        "for example, or leave the technique out."
    )


def batch_axes(config: TrainConfig) -> tuple[str, ...]:
    """Return the axes that divide the batch."""
    is_used = {
        PP: config.pipelined,
        DP: config.data_parallel != "none",
        FSDP: config.fully_sharded,
        EP: config.expert_parallel,
    }
    return tuple(axis for axis, used in is_used.items() if used)
