"""Compare reports with a reference.

A **diff** compares two reports buffer by buffer. Buffers are matched by their shape and the operation that makes them.
Buffers with equal operation and shape are one entry with their sum. A buffer that exists in only one program is
compared with zero bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from memprof.analysis.records.categories import Category
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Bytes in one program and in the program that it is compared with."""

    before_bytes: int
    after_bytes: int

    @property
    def delta_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedChange(Change):
    """The change of one category, module or kind of buffer: `what` names the kind."""

    what: str
    name: str


def changes_between(what: str, before: Mapping[str, int], after: Mapping[str, int]) -> tuple[NamedChange, ...]:
    """Return the change of each key of either mapping, in their order; a missing key counts zero bytes."""
    return tuple(
        NamedChange(what=what, name=name, before_bytes=before.get(name, 0), after_bytes=after.get(name, 0))
        for name in dict.fromkeys([*before, *after])
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a technique shows in the compiled program, with the evidence in one sentence.

    `took_effect` is None if only a comparison with a program without the technique could show it.
    """

    took_effect: bool | None
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The change of one row against the reference row.

    Attributes:
        label: of the row.
        footprint_delta_bytes: its footprint minus the reference's.
        footprint_ratio: its footprint divided by the reference's.
        categories_delta: the same difference for every category; adds up to `footprint_delta_bytes`.
        took_effect: whether every technique of the row shows in its program; None if that is unknown for any of them.
        evidence: one sentence for each technique.
    """

    label: str
    footprint_delta_bytes: int
    footprint_ratio: float
    categories_delta: Mapping[Category, int]
    took_effect: bool | None
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRow:
    """A configuration without a report, and the reason in one sentence."""

    label: str
    reason: str


def failure_reasons(failures: Sequence[FailedRow]) -> tuple[str, ...]:
    """Return each reason once, after the labels of its rows."""
    labels: dict[str, list[str]] = {}
    for failure in failures:
        labels.setdefault(failure.reason, []).append(failure.label)
    return tuple(f"{', '.join(names)}: {reason}" for reason, names in labels.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedBuffers(Change):
    """The buffers of one operation and shape that are live at the peak, before and after.

    Attributes:
        dtypes: XLA's names of their dtypes; several if the precision changed.
        category: of the largest buffer after, or before if none remains; `module` and `source` likewise.
    """

    op: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    category: Category
    module: str
    source: str
    num_before: int
    num_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportComparison:
    """Rows in the given order with one effect each; the reference's own effect is zero.

    Attributes:
        baseline: label of the reference row.
        failures: rows without a report.
        differences: other differences between the rows: a target, a version, a configuration.
        buffers: of a diff: the buffers of both rows, largest change first; the changes add up to that of the live peak.
    """

    baseline: str
    rows: tuple[Report, ...]
    effects: tuple[Effect, ...]
    failures: tuple[FailedRow, ...]
    differences: tuple[str, ...]
    buffers: tuple[MatchedBuffers, ...] = ()


def compare(
    rows: Sequence[Report],
    *,
    baseline: str,
    verdicts: Mapping[str, Sequence[Verdict]] | None = None,
    failures: Sequence[FailedRow] = (),
) -> ReportComparison:
    """Compare reports with one of them.

    Args:
        rows: reports with distinct labels.
        baseline: the label of the reference row, which must be in `rows`.
        verdicts: for each label, a verdict on each technique of the row; empty if nothing is known.
        failures: rows without a report, to be shown with the others.
    """
    reference = next(row for row in rows if row.label == baseline)
    verdicts = verdicts or {}
    return ReportComparison(
        baseline=baseline,
        rows=tuple(rows),
        effects=tuple(_effect(row, reference, verdicts.get(row.label, ())) for row in rows),
        failures=tuple(failures),
        differences=_differences(rows, reference),
    )


def diff(before: Report, after: Report) -> ReportComparison:
    """Compare `after` with `before`, buffer by buffer. Their labels must differ."""
    members: dict[tuple[str, tuple[int, ...]], tuple[list[LiveBuffer], list[LiveBuffer]]] = defaultdict(
        lambda: ([], [])
    )
    for side, report in enumerate((before, after)):
        for buffer in report.buffers:
            members[buffer.op or buffer.name, buffer.shape][side].append(buffer)
    matched = (_matched(op, shape, *sides) for (op, shape), sides in members.items())
    return replace(
        compare([before, after], baseline=before.label),
        buffers=tuple(sorted(matched, key=lambda each: (-abs(each.delta_bytes), -each.after_bytes))),
    )


def _matched(
    op: str, shape: tuple[int, ...], before: Sequence[LiveBuffer], after: Sequence[LiveBuffer]
) -> MatchedBuffers:
    shown = max(after or before, key=lambda buffer: buffer.size_bytes)
    return MatchedBuffers(
        op=op,
        shape=shape,
        dtypes=tuple(dict.fromkeys(buffer.dtype for buffer in (*before, *after))),
        category=shown.category,
        module=shown.module,
        source=shown.source,
        num_before=len(before),
        num_after=len(after),
        before_bytes=sum(buffer.size_bytes for buffer in before),
        after_bytes=sum(buffer.size_bytes for buffer in after),
    )


def _effect(row: Report, reference: Report, verdicts: Sequence[Verdict]) -> Effect:
    return Effect(
        label=row.label,
        footprint_delta_bytes=row.footprint_bytes - reference.footprint_bytes,
        footprint_ratio=row.footprint_bytes / reference.footprint_bytes if reference.footprint_bytes else 1.0,
        categories_delta={category: row.categories[category] - reference.categories[category] for category in Category},
        took_effect=_all_took_effect(verdicts),
        # Failures come first, because the reader must not miss them.
        evidence="; ".join(
            verdict.evidence for verdict in sorted(verdicts, key=lambda each: each.took_effect is not False)
        ),
    )


def _all_took_effect(verdicts: Sequence[Verdict]) -> bool | None:
    found = {verdict.took_effect for verdict in verdicts}
    if False in found:
        return False
    return True if found == {True} else None


def _differences(rows: Sequence[Report], reference: Report) -> tuple[str, ...]:
    """Return the differences between rows that no technique makes."""
    seen: dict[str, set[str]] = {}
    for row in rows:
        facts = {
            "workload": row.workload,
            "target": row.target.name,
            "device": row.target.description,
            "framework": row.framework,
            "engine": row.engine or "none",
            "tensorrt": row.toolchain.tensorrt or "none",
            "torch": row.toolchain.torch or "none",
            "jax": row.toolchain.jax or "none",
            "jaxlib": row.toolchain.jaxlib or "none",
            "python": row.toolchain.python,
            "memprof": row.toolchain.memprof,
            "flax": row.toolchain.flax or "none",
            "optax": row.toolchain.optax or "none",
            "XLA_FLAGS": row.toolchain.xla_flags or "none",
            "settings of JAX": " ".join(row.toolchain.settings) or "none",
        }
        for what, value in facts.items():
            seen.setdefault(what, set()).add(value)
    return tuple(f"{what}: {', '.join(sorted(values))}" for what, values in seen.items() if len(values) > 1)
