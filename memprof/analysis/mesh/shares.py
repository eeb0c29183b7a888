"""Each device's share of the step's arguments: bytes per role, and data that all devices replicate.

A leaf is replicated over a mesh axis if its sharding omits that axis: all devices along the axis hold the same bytes.
If the step leaves a sharding to XLA, its axes are unknown here; only the bytes per device are known.
"""

from __future__ import annotations

from dataclasses import dataclass

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Role
from memprof.analysis.records.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One device's share of one leaf, or of all arguments of one role, that the program takes.

    Attributes:
        whole_bytes: bytes of the whole arrays.
        device_bytes: bytes of the arrays on one device.
    """

    name: str
    whole_bytes: int
    device_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedOver:
    """Data that all devices along one mesh axis replicate.

    Attributes:
        num_devices: the size of the axis.
        device_bytes: bytes of this data on one device.
        largest: its largest leaf.
    """

    axis: str
    num_devices: int
    device_bytes: int
    largest: str

    @property
    def saving_bytes(self) -> int:
        """The bytes that each device would save if all of this data were sharded over the axis."""
        return self.device_bytes - self.device_bytes // self.num_devices


def shares_by_role(report: Report) -> tuple[Share, ...]:
    """Return the share of each role that has arguments, in the order of `Role`."""
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
    """Return the leaves that each device holds whole although they could be sharded, largest first."""
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
    """Return, for each mesh axis, the data that is replicated over it and could be sharded, in the mesh's order."""
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
