"""Readings of a report that the evidence of several technique families shares."""

from __future__ import annotations

import re
from collections.abc import Iterable

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.report import Loop, Report

# The pass that a loop belongs to.
FORWARD = "forward"
BACKWARD = "backward"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def yes(evidence: str) -> Verdict:
    """Return the verdict that a technique took effect."""
    return Verdict(took_effect=True, evidence=evidence)


def no(evidence: str) -> Verdict:
    """Return the verdict that a report shows no sign of a technique."""
    return Verdict(took_effect=False, evidence=evidence)


def undecided(evidence: str) -> Verdict:
    """Return the verdict that this program alone cannot show the effect."""
    return Verdict(took_effect=None, evidence=evidence)


def used_arguments(report: Report, role: Role) -> tuple[ArgumentLeaf, ...]:
    """Return the argument leaves of a role that the compiled program takes."""
    return tuple(leaf for leaf in report.arguments if leaf.role is role and leaf.parameter_number is not None)


def total_bytes(leaves: Iterable[ArgumentLeaf]) -> int:
    """Return the bytes of argument leaves."""
    return sum(leaf.size_bytes for leaf in leaves)


def most_bytes(report: Report, category: Category) -> int:
    """Return the largest number of live bytes of a category at any moment of the step, not only at its peak."""
    live = most = report.timeline.base.get(category, 0)
    for change in report.timeline.changes:
        if change.category is category:
            live += change.delta_bytes
            most = max(most, live)
    return most


def num_operations(report: Report, phase: Phase, scope_part: str) -> int:
    """Return the number of operations of a phase whose path contains a scope of that name."""
    return sum(
        operations.num_operations
        for operations in report.program.operations
        if operations.phase is phase and scope_part in operations.scope.split("/")
    )


def in_words(size_bytes: int) -> str:
    """Return a size in words for a sentence of evidence: `1.50 GiB`."""
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size_bytes} B" if unit == 0 else f"{size:.2f} {_UNITS[unit]}"


def is_same_program(report: Report, other: Report) -> bool:
    """Whether two reports describe the same program, as far as reports show it."""
    return _shape(report) == _shape(other)


def _shape(report: Report) -> tuple[object, ...]:
    buffers = tuple(
        (buffer.name, buffer.size_bytes, buffer.start, buffer.end, buffer.offset) for buffer in report.buffers
    )
    return report.footprint_bytes, report.timeline.num_positions, buffers, report.program


def loop_scopes(loop: Loop) -> list[str]:
    """Return the scopes in a loop's name: `step`, `jvp` and `Net` from `jit(step)/transpose(jvp(Net))/while`."""
    return re.split(r"[/()]+", loop.op)


def loop_direction(loop: Loop) -> str | None:
    """Return the pass that a loop belongs to; None if it contains both."""
    if "transpose(" in loop.op:
        return BACKWARD
    return FORWARD if "jvp(" in loop.op else None
