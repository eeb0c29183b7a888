"""What `--format json` prints of a step on several devices: `mesh` in a report."""

# Without `from __future__ import annotations`: see `report.py`.

from typing import Annotated

from msgspec import Struct

from memprof.analysis.mesh.shares import replicated_over, shares_by_role
from memprof.analysis.records.report import Report
from memprof.reports.json.types import Size, about, filled


class ShareJson(Struct, frozen=True, kw_only=True):
    """What one device of the mesh holds of the arguments of a role."""

    name: Annotated[str, about("The role.")]
    whole_bytes: Annotated[Size, about("Of the whole arrays.")]
    device_bytes: Annotated[Size, about("Of what one device holds of them.")]


class ReplicatedJson(Struct, frozen=True, kw_only=True):
    """The arguments that all devices along one axis of the mesh hold alike, and that could be divided over it."""

    axis: str
    num_devices: Annotated[Size, about("The size of the axis.")]
    device_bytes: Annotated[Size, about("What one device holds of them.")]
    saving_bytes: Annotated[Size, about("What a device would hold less if they were divided over the axis.")]
    largest: Annotated[str, about("The path of the largest of them.")]


class CollectiveJson(Struct, frozen=True, kw_only=True):
    """The collectives of a step that are of one kind and connect devices along the same axes."""

    kind: Annotated[str, about("XLA's name: `all-gather`, `all-reduce`, `reduce-scatter`, `collective-permute`, ...")]
    axes: Annotated[tuple[str, ...], about("Axes of the mesh; empty: the groups of devices lie along none of them.")]
    group_size: Annotated[Size | None, about("How many of the devices along these axes a group connects; null: all.")]
    count: Annotated[Size, about("How many run in a step.")]
    bytes: Annotated[
        Size,
        about("Their payload on one device: what an all-gather makes, what all others are given, of all that run."),
    ]
    param_bytes: Annotated[Size, about("The part of it that is made of parameters alone.")]
    at_least: Annotated[bool, about("Some are in a loop whose number of turns is not known, and are counted once.")]


class PartitionerNoteJson(Struct, frozen=True, kw_only=True):
    """What XLA's partitioner warned of when it divided the program."""

    text: str
    op: Annotated[str, about("JAX's name of the operation that it is about, or else XLA's; empty: not named.")]
    shape: Annotated[str, about("Of that operation on one device, as XLA writes it: `f32[8,16,4]`.")]
    module: str
    source: Annotated[str, about("The line of the user's code; empty where the compiled program does not tell.")]


class MeshJson(Struct, frozen=True, kw_only=True):
    """The devices that the step is compiled for, where there are several. All other numbers are those of one device."""

    num_devices: Size
    num_hosts: Size
    axes: Annotated[dict[str, Size], about("The size of each axis by its name, in the mesh's order.")]
    shares: Annotated[tuple[ShareJson, ...], about("For each role that has arguments.")]
    replicated: Annotated[tuple[ReplicatedJson, ...], about("For each axis over which something is replicated.")]
    collectives: Annotated[tuple[CollectiveJson, ...], about("By kind and axes, those of most bytes first.")]
    partitioner_notes: Annotated[tuple[PartitionerNoteJson, ...], about("What XLA's partitioner warned of.")]


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
