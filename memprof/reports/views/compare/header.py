"""The head of a comparison: what is compared, for what, with what, and what the configurations differ in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memprof.analysis.comparison import Comparison
from memprof.analysis.report import Report
from memprof.reports.document import Block, Fact, Facts, Heading
from memprof.reports.units import format_count
from memprof.reports.views.compare.rows import ComparedRow
from memprof.reports.views.header import target_values, toolchain_values

_NAMED_ROWS = 3


def title(comparison: Comparison) -> Heading:
    """The workload, if there is one for all, and how many rows there are."""
    workloads = {row.workload for row in comparison.rows}
    count = len(comparison.rows)
    text = f"{count} configuration{'' if count == 1 else 's'}"
    if comparison.failures:
        text += f", {len(comparison.failures)} failed"
    if len(workloads) == 1:
        text = f"{workloads.pop()}: {text}"
    return Heading(text=text, level=1, aside="memprof compare")


def setup_facts(rows: Sequence[ComparedRow]) -> Facts:
    """What the rows share, said once; where they do not, each value with the rows that it belongs to."""
    facts = [
        Fact(label="reference", values=tuple(row.name for row in rows if row.is_reference)),
        *_facts("workload", rows, lambda report: (report.workload,)),
        *_facts("model", rows, lambda report: (f"{format_count(report.num_params)} parameters",)),
        *_facts("target", rows, lambda report: target_values(report.target)),
        *_facts("toolchain", rows, lambda report: toolchain_values(report.toolchain)),
        *_facts("xla flags", rows, lambda report: tuple(report.toolchain.xla_flags.split())),
        *_facts("jax settings", rows, lambda report: report.toolchain.settings),
        Fact(label="differs", values=_config(rows)[1]),
    ]
    return Facts(facts=tuple(fact for fact in facts if fact.values))


def shared_config(rows: Sequence[ComparedRow]) -> tuple[Block, ...]:
    """The fields that are the same in all rows: too many for the head of the page."""
    shared, _ = _config(rows)
    if not shared:
        return ()
    return (Heading(text="Shared configuration", level=2), Facts(facts=(Fact(label="config", values=shared),)))


def _facts(label: str, rows: Sequence[ComparedRow], values_of: Callable[[Report], tuple[str, ...]]) -> list[Fact]:
    names: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        names.setdefault(values_of(row.report), []).append(row.name)
    if len(names) == 1:
        return [Fact(label=label, values=values) for values in names]
    return [Fact(label=label, values=(*(values or ("none",)), f"in {_who(who)}")) for values, who in names.items()]


def _who(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _NAMED_ROWS else f"{len(names)} rows"


def _config(rows: Sequence[ComparedRow]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The fields that are the same in all rows, and those that are not, each with all its values."""
    configs = [row.report.config for row in rows]
    shared: list[str] = []
    differing: list[str] = []
    for field in dict.fromkeys(field for config in configs for field in config):
        values = dict.fromkeys(str(config.get(field, "not set")) for config in configs)
        found = shared if len(values) == 1 else differing
        found.append(f"{field}={' or '.join(values)}")
    return tuple(shared), tuple(differing)
