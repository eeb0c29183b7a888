"""The communication between the devices of a mesh in one step: collectives by kind and mesh axes.

The **bytes** of a collective are its payload on one device: the whole array before the collective splits it, or after
it has joined the parts. For an `all-gather` these are the bytes of its result, for all others the bytes of its
operands. The traffic on the wires follows from the payload and the number of devices n. With a ring, each device sends
(n - 1) / n of the payload for an `all-gather` or a `reduce-scatter`, twice that for an `all-reduce`, and the whole
payload for a `collective-permute`.

A collective in a loop counts once per iteration. All branches of a conditional count.
"""

from __future__ import annotations

from collections import Counter

from memprof.analysis.attribution.aliases import runs
from memprof.analysis.attribution.dataflow import FROM_PARAMS, ROLES
from memprof.analysis.attribution.values import Values
from memprof.analysis.hlo.program import COLLECTIVES, Instruction, Program, ResultLeaf
from memprof.analysis.hlo.replica_groups import axes_of_groups, axes_of_pairs, part_of_axes
from memprof.analysis.records.capture import Topology
from memprof.analysis.records.report import CollectiveTraffic

_Key = tuple[str, tuple[str, ...] | None, int | None]  # kind, axes, and the number of devices along them
_IN_PAIRS = "collective-permute"
_INTO_THE_WHOLE = "all-gather"
_RAGGED = "ragged-all-to-all"  # its other operands give the destinations of the pieces


def collective_traffic(program: Program, topology: Topology, values: Values) -> tuple[CollectiveTraffic, ...]:
    """Return all collectives of one step by kind and connected devices, largest bytes first."""
    counts: Counter[_Key] = Counter()
    sizes: Counter[_Key] = Counter()
    of_params: Counter[_Key] = Counter()
    at_least = set()
    for instruction, times, is_known in runs(program):
        kind = COLLECTIVES.get(instruction.opcode)
        if kind is None:
            continue
        key = kind, *_connected(instruction, kind, topology)
        if key[1] == ():
            continue  # each device alone
        counts[key] += times
        # In a combined collective, each result belongs to its own operand; otherwise all leaves belong to all operands.
        origins = [values.flow.origin[group] & ROLES for group in values.groups_read_by(instruction)]
        for number, leaf in enumerate(payload(program, instruction, kind)):
            sizes[key] += times * leaf.size_bytes
            if origins[number if instruction.is_combined else 0] == FROM_PARAMS:
                of_params[key] += times * leaf.size_bytes
        if not is_known:
            at_least.add(key)
    found = (
        CollectiveTraffic(
            kind=kind,
            axes=axes or (),
            group_size=group_size,
            count=counts[key],
            size_bytes=sizes[key],
            param_bytes=of_params[key],
            at_least=key in at_least,
        )
        for key in counts
        for kind, axes, group_size in (key,)
    )
    return tuple(sorted(found, key=lambda each: (-each.size_bytes, each.kind, each.axes, each.group_size or 0)))


def _connected(instruction: Instruction, kind: str, topology: Topology) -> tuple[tuple[str, ...] | None, int | None]:
    """Return the axes along which a collective connects devices, and their number (see `hlo/replica_groups.py`)."""
    groups = instruction.device_groups
    if kind == _IN_PAIRS:
        return axes_of_pairs(groups, topology.axes), None
    axes = axes_of_groups(groups, topology.axes)
    return axes, part_of_axes(groups, topology.axes, axes) if axes else None


def payload(program: Program, instruction: Instruction, kind: str) -> list[ResultLeaf]:
    """Return the arrays of the payload; for a combined collective, one per operand."""
    if kind == _INTO_THE_WHOLE:
        shape = instruction.shape
        # A background collective returns a pair: what was sent, and its result.
        is_pair = instruction.opcode != kind and shape.child_starts is not None
        return [shape.leaves[number] for number in shape.child(1)] if is_pair else list(shape.leaves)
    operands = instruction.operands[:1] if kind == _RAGGED else instruction.operands
    return [leaf for operand in operands for leaf in program.instructions[operand].shape.leaves]
