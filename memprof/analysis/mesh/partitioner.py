"""Warnings of XLA's partitioner, each with its operation.

The partitioner has one such warning, "Involuntary full rematerialization": an array is needed in another sharding, and
the partitioner knows no better way than to materialize the whole array on each device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from memprof.analysis.attribution.sources import Sources
from memprof.analysis.attribution.values import Values
from memprof.analysis.hlo.program import Program
from memprof.analysis.records.report import PartitionerNote

_FULL = re.compile(
    r"^Involuntary full rematerialization\..*? from sharding (?P<old>.+?) to (?P<new>.+?) (?:efficiently|without)\b"
)
_OPERATION = re.compile(r"for HLO operation:? %?(?P<name>\S+) = (?P<shape>\w+\[[\d,]*\])")
_OP_NAME = re.compile(r'metadata=\{[^}]*?op_name="(?P<op>[^"]*)"')
_MAX_CHARACTERS = 500


def partitioner_notes(
    messages: Iterable[str], program: Program, values: Values, sources: Sources
) -> tuple[PartitionerNote, ...]:
    """Return each distinct message in our words, with the compiled program's data on the operation that it names."""
    by_name = {each.op_name: each for each in reversed(program.instructions) if each.op_name} if messages else {}
    notes = []
    for message in messages:
        full, operation, op_name = (each.search(message) for each in (_FULL, _OPERATION, _OP_NAME))
        op = op_name["op"] if op_name else ""
        instruction = by_name.get(op)
        shape = operation["shape"] if operation else ""
        text = message[:_MAX_CHARACTERS]
        if full:
            text = (
                f"XLA materializes a whole array on each device to change sharding from {full['old']} to {full['new']}"
                " (involuntary full rematerialization)"
            )
        notes.append(
            PartitionerNote(
                text=text,
                op=op or (operation["name"] if operation else ""),
                shape=shape,
                module=values.module_of(instruction) if instruction else "",
                source=sources.lines(instruction).user if instruction else "",
            )
        )
    return tuple(dict.fromkeys(notes))
