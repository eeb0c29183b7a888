"""The arguments on each device of a mesh, and the traffic between the devices."""

from __future__ import annotations

from math import prod

from memprof.analysis.mesh.shares import ReplicatedOver, Share, largest_whole, replicated_over, shares_by_role
from memprof.analysis.records.capture import Topology
from memprof.analysis.records.report import CollectiveTraffic, PartitionerNote, Report
from memprof.reports.document import Block, Cell, Heading, Note, Table, Tone
from memprof.reports.units import format_bytes, format_share
from memprof.reports.views.cells import short_names, size_cell
from memprof.reports.views.fields import number, table, text

_NUM_WHOLE = 5
_ROUNDED = 0.01  # tolerance of an even division, because a role may contain scalars, which are never divided


def mesh_blocks(report: Report) -> tuple[Block, ...]:
    """Build the section; empty for one device."""
    topology = report.target.topology
    if topology.num_devices == 1:
        return ()
    found: list[Block] = [
        Heading(text=f"Arguments on each of {topology.num_devices} devices", level=2, aside=mesh_text(topology)),
        _table("role", shares_by_role(report), topology.num_devices),
    ]
    if axes := replicated_over(report):
        found += [Heading(text="Arguments that are replicated along an axis", level=2), _axes_table(axes)]
    if whole := largest_whole(report, top=_NUM_WHOLE):
        found += [
            Heading(text="Largest arguments that are replicated on all devices", level=2),
            _table("argument", whole, topology.num_devices),
        ]
    if report.collectives:
        found += [
            Heading(text="Collectives of one step", level=2, aside="payload on a device"),
            _collectives_table(report.collectives, topology),
        ]
    return tuple(found)


def partitioner_notes(report: Report) -> tuple[Note, ...]:
    """Quote the warnings of XLA's partitioner, with their places in the user's code."""
    names = short_names([*report.by_source, *(each.source for each in report.partitioner_notes)])
    return tuple(
        Note(tone=Tone.WARNING, text=_partitioner_text(each, names[each.source])) for each in report.partitioner_notes
    )


def _partitioner_text(note: PartitionerNote, source: str) -> str:
    places = [note.shape and f"{note.shape} on a device", note.module and f"module {note.module}", source]
    where = ", ".join(place for place in places if place)
    return f"{note.text}{f': {note.op}' if note.op else ''}{f' ({where})' if where else ''}."


def mesh_text(topology: Topology) -> str:
    """Describe a mesh: `fsdp=4 · tp=2 · 2 hosts`."""
    axes = [f"{name}={size}" for name, size in topology.axes.items()]
    return " · ".join([*axes, *([f"{topology.num_hosts} hosts"] if topology.num_hosts > 1 else [])])


def _table(title: str, shares: tuple[Share, ...], num_devices: int) -> Table:
    return table(
        shares,
        [
            text(title, lambda each: each.name, min_width=16),
            number("whole", lambda each: size_cell(each.whole_bytes)),
            number("on a device", lambda each: size_cell(each.device_bytes)),
            text("share", lambda each: _share_cell(each, num_devices)),
        ],
    )


def _share_cell(share: Share, num_devices: int) -> Cell:
    if share.device_bytes == share.whole_bytes:
        return Cell(text="replicated", key=Tone.WARNING)
    times = share.whole_bytes / share.device_bytes
    is_even = abs(times - round(times)) < _ROUNDED
    text = f"1/{round(times)}" if is_even else format_share(share.device_bytes, share.whole_bytes)
    return Cell(text=text, key=Tone.GOOD if is_even and round(times) == num_devices else None)


def _collectives_table(collectives: tuple[CollectiveTraffic, ...], topology: Topology) -> Table:
    return table(
        collectives,
        [
            text("kind", lambda each: each.kind),
            text("along", lambda each: _along(each, topology)),
            number("times", lambda each: f"{'≥ ' if each.at_least else ''}{each.count:,}"),
            number("bytes", lambda each: size_cell(each.size_bytes)),
            number("of parameters", lambda each: size_cell(each.param_bytes), priority=1),
        ],
    )


def _along(traffic: CollectiveTraffic, topology: Topology) -> str:
    """Name the axes that a collective connects: `fsdp and tp`, or `fsdp (2 of 4)` if its groups are smaller."""
    num_devices = prod(topology.axes[axis] for axis in traffic.axes)
    part = f" ({traffic.group_size} of {num_devices})" if traffic.group_size else ""
    return f"{' and '.join(traffic.axes)}{part}" if traffic.axes else "other groups"


def _axes_table(axes: tuple[ReplicatedOver, ...]) -> Table:
    return table(
        axes,
        [
            text("axis", lambda each: f"{each.axis}={each.num_devices}"),
            number("on a device", lambda each: size_cell(each.device_bytes)),
            number("saving if sharded", lambda each: format_bytes(each.saving_bytes)),
            text("its largest", lambda each: each.largest, min_width=16, priority=1),
        ],
    )
