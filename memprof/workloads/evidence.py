"""What the evidence of several families of techniques reads off a report."""

from __future__ import annotations

import re
from collections.abc import Iterable

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.report import Loop, Report

# Which pass a loop belongs to.
FORWARD = "forward"
BACKWARD = "backward"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def yes(evidence: str) -> Verdict:
    """Returns the verdict that a technique took effect."""
    return Verdict(took_effect=True, evidence=evidence)


def no(evidence: str) -> Verdict:
    """Returns the verdict that nothing of a technique is to be seen."""
    return Verdict(took_effect=False, evidence=evidence)


def undecided(evidence: str) -> Verdict:
    """Returns the verdict that this program alone does not show it."""
    return Verdict(took_effect=None, evidence=evidence)


def used_arguments(report: Report, role: Role) -> tuple[ArgumentLeaf, ...]:
    """Returns the argument leaves of a role that the compiled program takes."""
    return tuple(leaf for leaf in report.arguments if leaf.role is role and leaf.parameter_number is not None)


def total_bytes(leaves: Iterable[ArgumentLeaf]) -> int:
    """Returns the bytes of argument leaves."""
    return sum(leaf.size_bytes for leaf in leaves)


def most_bytes(report: Report, category: Category) -> int:
    """Returns the most bytes of a category that are live at any moment of the step, not only at its peak."""
    live = most = report.timeline.base.get(category, 0)
    for change in report.timeline.changes:
        if change.category is category:
            live += change.delta_bytes
            most = max(most, live)
    return most


def num_operations(report: Report, phase: Phase, scope_part: str) -> int:
    """Returns how many operations of a phase lie in a scope of that name, anywhere in their path."""
    return sum(
        operations.num_operations
        for operations in report.program.operations
        if operations.phase is phase and scope_part in operations.scope.split("/")
    )


def in_words(size_bytes: int) -> str:
    """Returns a size in words for a sentence of evidence: `1.50 GiB`."""
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size_bytes} B" if unit == 0 else f"{size:.2f} {_UNITS[unit]}"


def is_same_program(report: Report, other: Report) -> bool:
    """Whether two reports are of one program, as far as a report shows it."""
    return _shape(report) == _shape(other)


def _shape(report: Report) -> tuple[object, ...]:
    buffers = tuple(
        (buffer.name, buffer.size_bytes, buffer.start, buffer.end, buffer.offset) for buffer in report.buffers
    )
    return report.footprint_bytes, report.timeline.num_positions, buffers, report.program


def loop_scopes(loop: Loop) -> list[str]:
    """The scopes in a loop's name: `jit(step)/transpose(jvp(Net))/while` has `step`, `transpose`, `jvp`, `Net`."""
    return re.split(r"[/()]+", loop.op)


def loop_direction(loop: Loop) -> str | None:
    """Which pass a loop belongs to; None where it holds both."""
    if "transpose(" in loop.op:
        return BACKWARD
    return FORWARD if "jvp(" in loop.op else None
