"""What `--format json` prints of a step on several devices: `mesh` in a report."""

# Without `from __future__ import annotations`: see `report.py`.

from typing import Annotated

from msgspec import Struct

from memprof.analysis.mesh.shares import replicated_over, shares_by_role
from memprof.analysis.records.report import Report
from memprof.reports.json.types import Size, about, filled


class ShareJson(Struct, frozen=True, kw_only=True):
    """The part of a role's arguments on one device of the mesh."""

    name: Annotated[str, about("The role.")]
    whole_bytes: Annotated[Size, about("Size of the whole arrays.")]
    device_bytes: Annotated[Size, about("Size of their part on one device.")]


class ReplicatedJson(Struct, frozen=True, kw_only=True):
    """Arguments that all devices along one axis of the mesh hold alike, and that could be divided over it."""

    axis: str
    num_devices: Annotated[Size, about("The size of the axis.")]
    device_bytes: Annotated[Size, about("Size of them on one device.")]
    saving_bytes: Annotated[Size, about("The saving on one device if they were divided over the axis.")]
    largest: Annotated[str, about("The path of the largest of them.")]


class CollectiveJson(Struct, frozen=True, kw_only=True):
    """The collectives of one kind that connect devices along the same axes."""

    kind: Annotated[str, about("XLA's name: `all-gather`, `all-reduce`, `reduce-scatter`, `collective-permute`, ...")]
    axes: Annotated[tuple[str, ...], about("Axes of the mesh; empty if the groups of devices lie along no axis.")]
    group_size: Annotated[
        Size | None, about("Number of devices along these axes that a group connects; null means all.")
    ]
    count: Annotated[Size, about("Number of runs in a step.")]
    bytes: Annotated[
        Size,
        about("Payload on one device, of all runs: the result of an all-gather, the operand of any other kind."),
    ]
    param_bytes: Annotated[Size, about("The part of it that depends only on parameters.")]
    at_least: Annotated[bool, about("Whether some are in a loop with an unknown trip count, and are counted once.")]


class PartitionerNoteJson(Struct, frozen=True, kw_only=True):
    """A warning of XLA's partitioner."""

    text: str
    op: Annotated[str, about("JAX's name of the operation, or else XLA's; empty if it is not named.")]
    shape: Annotated[str, about("Shape of that operation on one device, as XLA writes it: `f32[8,16,4]`.")]
    module: str
    source: Annotated[str, about("The line of the user's code; empty if it is unknown.")]


class MeshJson(Struct, frozen=True, kw_only=True):
    """The devices that the step is compiled for, if there are several. All other numbers are for one device."""

    num_devices: Size
    num_hosts: Size
    axes: Annotated[dict[str, Size], about("The size of each axis by its name, in the mesh's order.")]
    shares: Annotated[tuple[ShareJson, ...], about("Shares of each role that has arguments.")]
    replicated: Annotated[
        tuple[ReplicatedJson, ...], about("One entry for each axis over which arguments are replicated.")
    ]
    collectives: Annotated[tuple[CollectiveJson, ...], about("Collectives by kind and axes, most bytes first.")]
    partitioner_notes: Annotated[tuple[PartitionerNoteJson, ...], about("Warnings of XLA's partitioner.")]


def mesh_json(report: Report) -> MeshJson | None:
    """What is printed of a mesh; None for one device."""
    topology = report.target.topology
    if topology.num_devices == 1:
        return None
    shares, replicated = shares_by_role(report), replicated_over(report)
    collectives = [filled(CollectiveJson, each, bytes=each.size_bytes) for each in report.collectives]
    return filled(
        MeshJson,
        topology,
        shares=shares,
        replicated=replicated,
        collectives=collectives,
        partitioner_notes=report.partitioner_notes,
    )
