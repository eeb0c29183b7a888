"""Check a report against limits: an amount that it must not exceed, and a growth against a baseline.

The report passes if it meets all limits:

    result = check(report, maxima=[Maximum(size_bytes=2 * 1024**3, reason="--max 2GiB")])
    result.passed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from memprof.amounts import parse_bytes, parse_share
from memprof.analysis.comparison import NamedChange, Verdict, changes_between
from memprof.analysis.records.categories import Category
from memprof.analysis.records.pool import Answer
from memprof.analysis.records.pool import Verdict as PoolVerdict
from memprof.analysis.records.pressure import Pressure
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.studies.check.baseline import Baseline, baseline_of

FOOTPRINT, LIVE_PEAK = "footprint", "live_peak"


@dataclass(frozen=True, slots=True, kw_only=True)
class Maximum:
    """The largest allowed footprint in bytes, and the origin of this limit."""

    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The allowed growth of a quantity, as a share of its old value or as an amount. Equal growth passes.

    Attributes:
        what: `footprint`, `live_peak` or a category.
        text: the user's text.
    """

    what: str
    text: str
    share: Fraction | None
    size_bytes: int

    def allows(self, before_bytes: int, after_bytes: int) -> bool:
        allowed = self.size_bytes if self.share is None else before_bytes * self.share
        return after_bytes - before_bytes <= allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One check and its outcome, in one sentence."""

    passed: bool
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The outcome of all checks.

    Attributes:
        items: the checks, in the order in which they were requested.
        differences: other changes since the baseline, in sentences: versions, flags.
        changes: changes against the baseline, largest growth first; empty without a baseline.
        verdict: whether the step fits the required device, or else the device that it was compiled for.
        pressure: values that XLA recomputes on its own.
    """

    label: str
    footprint_bytes: int
    items: tuple[Item, ...]
    differences: tuple[str, ...]
    changes: tuple[NamedChange, ...]
    verdict: PoolVerdict
    pressure: Pressure | None = None

    @property
    def passed(self) -> bool:
        return all(item.passed for item in self.items)


def parse_threshold(text: str) -> Threshold:
    """Parse a threshold: `footprint:+2%`, `activations:+64MiB`.

    Raises:
        MemprofError: the text is not a threshold.
    """
    what, _, growth = text.partition(":")
    quantities = [FOOTPRINT, LIVE_PEAK, *(category.value for category in Category)]
    if what not in quantities:
        raise MemprofError(
            f"'{text}' is not a threshold: write one of {', '.join(quantities)}, then a growth like :+2%"
        )
    share = parse_share(growth)
    if share is not None:
        return Threshold(what=what, text=text, share=share, size_bytes=0)
    if growth.strip().lstrip("+") in ("0", "0B"):
        return Threshold(what=what, text=text, share=None, size_bytes=0)
    try:
        return Threshold(what=what, text=text, share=None, size_bytes=parse_bytes(growth.strip().lstrip("+")))
    except MemprofError as error:
        raise MemprofError(f"'{text}' is not a threshold: write {what}:+2% or {what}:+64MiB") from error


def check(
    report: Report,
    *,
    maxima: Sequence[Maximum] = (),
    must_fit: PoolVerdict | None = None,
    baseline: Baseline | None = None,
    thresholds: Sequence[Threshold] = (),
    effects: Sequence[Verdict] = (),
) -> CheckResult:
    """Check a report.

    Args:
        maxima: upper limits of the footprint.
        must_fit: the verdict on the device that the step must fit; None if it need not fit one.
        baseline: sums to compare with. A baseline of another workload, target or mesh fails the check. Under memory
            pressure, the plans without it are compared.
        thresholds: the allowed growth.
        effects: whether each technique took effect; the check fails if one did not.
    """
    now = baseline_of(report)
    if baseline is not None and baseline.pressure == "unknown" and now.pressure == "lifted":
        now = baseline_of(replace(report, without_limit=None))  # an old baseline has the plan under pressure, if any
    # On another mesh, a device holds another part of the step, so a difference does not show that the step changed.
    is_of_other_mesh = baseline is not None and baseline.origin["mesh"] != now.origin["mesh"]
    items = [_maximum(report.footprint_bytes, maximum) for maximum in maxima]
    if must_fit is not None:
        items.append(Item(passed=must_fit.answer is Answer.FITS, sentence=must_fit.sentence))
    if baseline is not None:
        items += _origin(baseline, now)
        items += [_growth(baseline, now, threshold) for threshold in thresholds if not is_of_other_mesh]
    items += [Item(passed=verdict.took_effect is not False, sentence=verdict.evidence) for verdict in effects]
    return CheckResult(
        label=report.label,
        footprint_bytes=report.footprint_bytes,
        items=tuple(items),
        differences=_differences(baseline, now) if baseline else (),
        changes=_changes(baseline, now) if baseline and not is_of_other_mesh else (),
        verdict=must_fit or report.verdict,
        pressure=report.pressure,
    )


def _maximum(size_bytes: int, maximum: Maximum) -> Item:
    over = size_bytes - maximum.size_bytes
    if over <= 0:
        sentence = f"the footprint of {size_bytes:,} bytes is within {maximum.size_bytes:,} ({maximum.reason})"
    else:
        sentence = (
            f"the footprint of {size_bytes:,} bytes exceeds {maximum.size_bytes:,} by {over:,} ({maximum.reason})"
        )
    return Item(passed=over <= 0, sentence=sentence)


def _origin(before: Baseline, after: Baseline) -> list[Item]:
    return [
        Item(
            passed=False,
            sentence=f"the baseline differs in its {name}: {before.origin.get(name, 'unknown')}, now {value}",
        )
        for name, value in after.origin.items()
        if before.origin.get(name) != value
    ]


def _growth(before: Baseline, after: Baseline, threshold: Threshold) -> Item:
    was, is_now = _quantity(before, threshold.what), _quantity(after, threshold.what)
    passed = threshold.allows(was, is_now)
    share = f" ({100 * (is_now - was) / was:+.2f}%)" if was else ""
    growth = f"{threshold.what} went from {was:,} to {is_now:,} bytes{share}; the limit is {threshold.text}"
    return Item(passed=passed, sentence=f"{growth}{_which_plans(before, after)}")


def _which_plans(before: Baseline, after: Baseline) -> str:
    """Return the end of a sentence about growth: how memory pressure affects its numbers."""
    if before.pressure == "unknown" and after.pressure != "none":
        return (
            "; XLA recomputes values under memory pressure, and this baseline has no footprint without that, so growth"
            " may be hidden: write it again with --update"
        )
    pressures = {before.pressure, after.pressure}
    if "kept" in pressures:
        whose = "the baseline's program" if before.pressure == "kept" else "the program"
        return (
            f"; XLA recomputes values of {whose} under memory pressure, and no plan without that exists, so growth may"
            " be hidden"
        )
    return "; without what XLA recomputes under memory pressure" if "lifted" in pressures else ""


def _quantity(sums: Baseline, what: str) -> int:
    named = {FOOTPRINT: sums.footprint_bytes, LIVE_PEAK: sums.live_peak_bytes}
    return named[what] if what in named else sums.categories.get(what, 0)


def _differences(before: Baseline, after: Baseline) -> tuple[str, ...]:
    return tuple(
        f"{name} was {before.toolchain.get(name, 'unknown')} and is {value}"
        for name, value in after.toolchain.items()
        if before.toolchain.get(name) != value
    )


def _changes(before: Baseline, after: Baseline) -> tuple[NamedChange, ...]:
    """Return the changes by category, module and buffer, with the largest growth of each first."""
    both = (
        changes_between("category", before.categories, after.categories),
        changes_between("module", before.modules, after.modules),
        changes_between("buffer", before.buffers, after.buffers),
    )
    return tuple(
        change
        for changes in both
        for change in sorted(changes, key=lambda change: (-change.delta_bytes, change.name))
        if change.delta_bytes
    )
