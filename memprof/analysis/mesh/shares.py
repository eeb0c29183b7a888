"""What each device of a mesh holds of the step's arguments: how much of each role, and what all devices hold alike.

A leaf is replicated over an axis of the mesh when its sharding leaves that axis out: all devices along it hold the same
bytes. Where the step leaves a sharding to XLA, which axes it took is not known here, only how many bytes a device has.
"""

from __future__ import annotations

from dataclasses import dataclass

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Role
from memprof.analysis.records.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one device holds of the arguments of one role, or of one leaf, that the program takes.

    Attributes:
        whole_bytes: of the whole arrays.
        device_bytes: of what one device holds of them.
    """

    name: str
    whole_bytes: int
    device_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedOver:
    """What all devices along one axis of the mesh hold alike.

    Attributes:
        num_devices: the size of the axis.
        device_bytes: what one device holds of it.
        largest: the leaf that takes most of it.
    """

    axis: str
    num_devices: int
    device_bytes: int
    largest: str

    @property
    def saving_bytes(self) -> int:
        """What a device would hold less if all of it were divided over the axis."""
        return self.device_bytes - self.device_bytes // self.num_devices


def shares_by_role(report: Report) -> tuple[Share, ...]:
    """One for each role that has arguments, in the order of `Role`."""
    used = _used(report)
    found = ((role, [leaf for leaf in used if leaf.role is role]) for role in Role)
    return tuple(
        Share(
            name=role.value,
            whole_bytes=sum(leaf.size_bytes for leaf in leaves),
            device_bytes=sum(report.device_bytes(leaf) for leaf in leaves),
        )
        for role, leaves in found
        if leaves
    )


def largest_whole(report: Report, *, top: int) -> tuple[Share, ...]:
    """The leaves that each device holds whole though they could be divided, largest first."""
    num_devices = report.target.topology.num_devices
    whole = [
        leaf
        for leaf in _used(report)
        if report.device_bytes(leaf) == leaf.size_bytes and leaf.num_elements >= num_devices
    ]
    whole.sort(key=lambda leaf: (-leaf.size_bytes, leaf.path))
    return tuple(
        Share(name=leaf.path, whole_bytes=leaf.size_bytes, device_bytes=leaf.size_bytes) for leaf in whole[:top]
    )


def replicated_over(report: Report) -> tuple[ReplicatedOver, ...]:
    """For each axis of the mesh what is replicated over it and could be divided, in the mesh's order."""
    found = []
    for axis, size in report.target.topology.axes.items():
        leaves = [
            leaf
            for leaf in _used(report)
            if leaf.mesh_axes is not None and axis not in leaf.mesh_axes and leaf.num_elements >= size
        ]
        if leaves and size > 1:
            found.append(
                ReplicatedOver(
                    axis=axis,
                    num_devices=size,
                    device_bytes=sum(report.device_bytes(leaf) for leaf in leaves),
                    largest=max(leaves, key=report.device_bytes).path,
                )
            )
    return tuple(found)


def _used(report: Report) -> list[ArgumentLeaf]:
    return [leaf for leaf in report.arguments if leaf.parameter_number is not None]
