"""Conversion of XLA's text dumps of a compiled program to the equivalent `xla.HloProto`.

    XLA_FLAGS="--xla_dump_to=DIR" python train.py        # without --xla_dump_hlo_as_proto

A dump consists of three texts. XLA's own parser reads the program. The buffer assignment lists every value with its
offset. The live ranges give the first and last instruction of each value in the schedule. Only the heap-simulator trace
is missing, but it can be derived: XLA makes it from these live ranges, instruction by instruction, and allocates before
it frees (`xla/service/heap_simulator`). A value placed at the offset of a live value shares its memory.

The order in which one instruction allocates and frees several values is unknown; totals and peaks do not depend on it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memprof.analysis.hlo.buffer_table import EventKind
from memprof.analysis.hlo.hlo_proto import HloProto, MemoryReport
from memprof.errors import MemprofError
from memprof.sources.jax.xla.hlo_parser import hlo_module_of_text

# Formats of `BufferAssignment::ToString` and `HloLiveRange::ToString`.
_NUMBER, _INDEX = r"\d{1,18}", r"(?:\d{1,9}(?:,\d{1,9})*)?"
_ALLOCATION = re.compile(
    rf"allocation (?P<index>{_NUMBER}): size (?P<size>{_NUMBER})(?:, color (?P<color>{_NUMBER}))?(?:, page \d+)?"
    rf"(?:, parameter (?P<parameter>{_NUMBER}), shape \|.*?\| at ShapeIndex \{{(?P<parameter_index>{_INDEX})\}})?"
    r"(?:, output shape is \|.*?\|)?(?P<constant>, constant)?(?P<thread_local>, thread-local)?"
    r"(?P<live_out>, maybe-live-out)?(?P<temp>, preallocated-temp)?:"
)
_VALUE = re.compile(
    rf" value: <(?P<id>{_NUMBER}) (?P<name>[^\s{{]+)(?:\{{(?P<index>{_INDEX})\}})?(?: \(phi\))? @(?P<color>{_NUMBER})>"
    rf" \(size=(?P<size>{_NUMBER}),offset=(?P<offset>{_NUMBER})\): (?P<shape>.+)"
)
_LIVE_RANGE = re.compile(rf"    (?P<name>[^\s{{]+)\{{(?P<index>{_INDEX})\}}:(?P<start>{_NUMBER})-(?P<end>{_NUMBER})")
_RANGES_BEGIN, _RANGES_END = "\n  BufferLiveRange:\n", "\n  Live ranges at "
_NUM_DEVICES = {
    "replica_count": re.compile(r"\breplica_count=(\d{1,9})\b"),
    "computation_count": re.compile(r"\bnum_partitions=(\d{1,9})\b"),
}
_MEMORY_SPACE = re.compile(rf"\(color=({_NUMBER})\)\s+Total bytes: ({_NUMBER})\b")
_Position = tuple[str, tuple[int, ...]]  # the instruction's name and the shape index
_Ranges = Mapping[_Position, tuple[int, int]]  # the schedule positions of the first and the last instruction


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """A value in the temp block, with its defining instruction and its live range in the schedule."""

    id: int
    size_bytes: int
    offset: int
    instruction: str
    start: int
    end: int


def hlo_proto_of_texts(program: str, assignment: str, live_ranges: str) -> bytes:
    """Build the `xla.HloProto` of a program from its text dumps.

    Args:
        program: content of `*after_optimizations.txt`.
        assignment: content of `*after_optimizations-buffer-assignment.txt`.
        live_ranges: content of `*after_optimizations-live-range.txt`.

    Raises:
        MemprofError: a text cannot be parsed, or the texts belong to different programs.
    """
    proto = HloProto()
    proto.hlo_module.MergeFromString(hlo_module_of_text(program))
    header = program.partition("\n")[0]
    for field, pattern in _NUM_DEVICES.items():
        number = pattern.search(header)
        setattr(proto.hlo_module.device_assignment, field, int(number[1]) if number else 1)
    computations = {
        each.name: computation.name
        for computation in proto.hlo_module.computations
        for each in computation.instructions
    }
    for values in _placed(proto, assignment, _ranges(live_ranges)):
        trace = proto.buffer_assignment.heap_simulator_traces.add(whole_module_simulation=True)
        for kind, value, canonical_id in _events(values):
            trace.events.add(
                kind=kind,
                buffer_id=value.id,
                computation_name=computations[value.instruction],
                instruction_name=value.instruction,
                share_with_canonical_id=canonical_id,
            )
    data: bytes = proto.SerializeToString()
    return data


def memory_report_of_text(text: str) -> bytes:
    """Convert XLA's memory report to a proto with the only fields that are read: the bytes of each memory space."""
    report = MemoryReport()
    for color, total_bytes in _MEMORY_SPACE.findall(text):
        report.spaces.add(color=int(color), total_bytes=int(total_bytes))
    data: bytes = report.SerializeToString()
    return data


def _ranges(text: str) -> _Ranges:
    _, begin, listed = text.partition(_RANGES_BEGIN)
    listed, end, _ = listed.partition(_RANGES_END)
    if not begin or not end:
        raise MemprofError("the text of its live ranges is truncated")
    return {
        (found["name"], _index(found["index"])): (int(found["start"]), int(found["end"]))
        for found in map(_LIVE_RANGE.fullmatch, listed.splitlines())
        if found
    }


def _placed(proto: Any, text: str, ranges: _Ranges) -> list[list[_Value]]:
    """Read the allocations and their values, and return the values of each temp block, which share its memory."""
    ids = {each.name: each.id for computation in proto.hlo_module.computations for each in computation.instructions}
    assignment, unplaced = proto.buffer_assignment, set(ranges)
    temp_blocks: list[list[_Value]] = []
    is_temp = False
    for line in filter(None, text.splitlines()[1:]):
        if heading := _ALLOCATION.fullmatch(line):
            allocation = assignment.buffer_allocations.add()
            if is_temp := _describe(allocation, heading):
                temp_blocks.append([])
            continue
        value = _VALUE.fullmatch(line)
        if value is None or not assignment.buffer_allocations:
            raise MemprofError(
                f"the text of its buffer assignment is damaged, or from another XLA: {line.strip()[:60]}"
            )
        name, index, offset = value["name"], _index(value["index"]), int(value["offset"])
        if name not in ids:
            raise MemprofError(f"the text of its buffer assignment names {name}, which is not in the program")
        buffer = assignment.logical_buffers.add(id=int(value["id"]), size=int(value["size"]), color=int(value["color"]))
        buffer.defined_at.instruction_id = ids[name]
        buffer.defined_at.shape_index.extend(index)
        allocation.assigned.add(logical_buffer_id=buffer.id, offset=offset, size=buffer.size)
        unplaced.discard((name, index))
        if value["shape"].startswith("("):  # a tuple's pointer table has its own memory, outside the trace
            allocation.is_tuple = True
        elif is_temp:
            if (name, index) not in ranges:
                raise MemprofError(f"the text of its live ranges does not say when {name} lives")
            start, end = ranges[name, index]
            if end < start:
                raise MemprofError(f"the text of its live ranges has {name} end at {end}, before it starts at {start}")
            temp_blocks[-1].append(
                _Value(id=buffer.id, size_bytes=buffer.size, offset=offset, instruction=name, start=start, end=end)
            )
    if unplaced:
        raise MemprofError(f"the text of its buffer assignment is truncated: {min(unplaced)[0]} has no place")
    return temp_blocks


def _describe(allocation: Any, heading: re.Match[str]) -> bool:
    """Fill in an allocation from its first line, and return whether it is a temp block."""
    allocation.index, allocation.size = int(heading["index"]), int(heading["size"])
    allocation.color = int(heading["color"] or 0)
    if heading["parameter"]:
        allocation.is_entry_computation_parameter = True
        allocation.parameter_number = int(heading["parameter"])
        allocation.parameter_shape_index.extend(_index(heading["parameter_index"]))
    allocation.is_constant = bool(heading["constant"])
    allocation.is_thread_local = bool(heading["thread_local"])
    allocation.maybe_live_out = bool(heading["live_out"])
    return bool(heading["temp"])


def _index(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def _events(values: Sequence[_Value]) -> Iterator[tuple[EventKind, _Value, int]]:
    """Yield the heap-simulator trace of one temp block (see the module's docstring)."""
    starting, ending = defaultdict(list), defaultdict(list)
    for value in values:
        starting[value.start].append(value)
        ending[value.end].append(value)
    holders: dict[int, tuple[int, int]] = {}  # by offset: the value that allocated it, and its number of users
    for time in sorted(starting.keys() | ending.keys()):
        for value in starting[time]:
            canonical_id, count = holders.get(value.offset, (value.id, 0)) if value.size_bytes else (value.id, 0)
            yield (EventKind.SHARE_WITH if count else EventKind.ALLOC), value, canonical_id if count else 0
            if value.size_bytes:
                holders[value.offset] = canonical_id, count + 1
        for value in ending[time]:
            yield EventKind.FREE, value, 0
            if value.size_bytes:
                canonical_id, count = holders.pop(value.offset)
                if count > 1:
                    holders[value.offset] = canonical_id, count - 1
