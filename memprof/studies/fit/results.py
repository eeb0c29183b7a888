"""What a search found, and everything that was tried for it: the largest value of a field, the cheapest techniques."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.pool import Verdict
from memprof.analysis.records.pressure import Pressure
from memprof.analysis.records.report import Report
from memprof.studies.fit.cheapest import Cost

DEVICES = "devices"  # what is varied: the devices of the mesh, or a parameter of that name
# A slope that falls to less than this part of the one before it is a bend; slopes of one straight part differ by less,
# since XLA pads and shares buffers a little differently from size to size.
_BENT = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One compile: the value, its footprint as the compiler has it, and how long lowering and compiling took.

    Attributes:
        footprint_bytes: of the plan without memory pressure.
        needed_bytes: the pool that it needs: the footprint, or more if a piece finds no place.
        pressure: what XLA recomputes on its own; None if it recomputes nothing.
        pressed_footprint_bytes: of the plan under that pressure.
    """

    value: int
    footprint_bytes: int
    seconds: float
    needed_bytes: int
    pressure: Pressure | None = None
    pressed_footprint_bytes: int | None = None

    def fits(self, budget_bytes: int) -> bool:
        """Whether that much is enough."""
        return self.needed_bytes <= budget_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputing:
    """Where XLA begins to recompute on its own, which makes steps slower.

    Attributes:
        value: the largest that was compiled without that.
        next_value: the smallest that was compiled with it.
    """

    value: int
    next_value: int


def recomputing_of(tried: Iterable[Trial]) -> Recomputing | None:
    """Where XLA begins to recompute; None if no trial shows it."""
    trials = sorted(tried, key=lambda trial: trial.value)
    number = next((number for number, trial in enumerate(trials) if trial.pressure is not None), 0)
    return Recomputing(value=trials[number - 1].value, next_value=trials[number].value) if number else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LargerValue:
    """A larger value, which fits if JAX's pool is made larger: with this fraction at least."""

    value: int
    mem_fraction: float
    footprint_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The examples of a step: of all devices together, and those that one of them holds."""

    in_all: int
    on_a_device: int


def batch_of(report: Report) -> Batch | None:
    """The batch by the first axis of all that it holds; None where there is no such axis, or where they differ."""
    on_a_device = {buffer.op: buffer.shape for buffer in report.buffers if buffer.category is Category.BATCH}
    leaves = [leaf for leaf in report.arguments if leaf.role is Role.BATCH and leaf.parameter_number is not None]
    found = {(leaf.shape[:1], on_a_device.get(leaf.path, ())[:1]) for leaf in leaves}
    if len(found) != 1 or ((), ()) in found:
        return None
    [((in_all, *_), own)] = found
    return Batch(in_all=in_all, on_a_device=own[0]) if own else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """The answer and everything that was tried for it.

    Attributes:
        subject: what was profiled; `techniques` are applied to it, by label.
        value: a value of `field` that fits, while `next_value`, the one after it, does not. It is the largest that fits
            where the footprint is monotone; where it is not, a larger one that was not tried may fit too. Of `devices`
            it is the smallest, and `next_value` the one before it; None where that is none for the step.
        step: only multiples of it were tried; `step_reason` says why where it is not 1.
        memory_bytes: of the device.
        budget_bytes: what a step may take of it: the pool, less what the user wants to stay free.
        verdict: of `value`.
        tried: every compile, in the order in which they were made.
        command: the command line that profiles the answer.
        mesh: of the answer, as the user writes it; empty for one device.
        num_devices: of that mesh; footprints are those of one device.
        batch: of the answer; None where it is not known.
        larger: the largest value that fits if the pool is made as large as the card allows; None if it is no larger.
    """

    subject: str
    techniques: tuple[str, ...]
    target: str
    field: str
    value: int
    next_value: int | None
    step: int
    step_reason: str
    memory_bytes: int
    budget_bytes: int
    verdict: Verdict
    tried: tuple[Trial, ...]
    command: str
    mesh: str = ""
    num_devices: int = 1
    batch: Batch | None = None
    larger: LargerValue | None = None

    @property
    def reserve_bytes(self) -> int:
        """What of the memory a step may not take."""
        return max(self.memory_bytes - self.budget_bytes, 0)

    @property
    def is_of_devices(self) -> bool:
        """Whether it is the number of devices that was varied."""
        return self.field == DEVICES

    def footprint_of(self, value: int) -> int:
        """The footprint of a value that was tried, without memory pressure."""
        return next(trial.footprint_bytes for trial in self.tried if trial.value == value)

    def findings(self) -> tuple[str, ...]:
        """Sentences about how the footprint grows where that is not as a straight line or worse."""
        if self.is_of_devices:
            return ()
        return (
            *_falls(self.field, self.tried),
            *_bends(self.field, self.tried),
            *_recomputes(self.field, self.tried),
        )

    @property
    def recomputing(self) -> Recomputing | None:
        """Where XLA begins to recompute on its own; None if it does in no trial, or for each value."""
        return recomputing_of(self.tried)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """What fits at one value of the other field.

    Attributes:
        at: that value.
        found: the largest value that fits there; None: not even the smallest does, as `refusal` says.
    """

    at: int
    found: FitResult | None
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCurve:
    """The points of a curve, by ascending values of `against`."""

    against: str
    points: tuple[CurvePoint, ...]

    @property
    def any_found(self) -> FitResult:
        """A fit of the curve: subject, techniques and budget are those of each."""
        return next(point.found for point in self.points if point.found is not None)


def _falls(field: str, tried: Sequence[Trial]) -> tuple[str, ...]:
    """Where a larger value takes less memory: then values beyond the next one may fit too, which is said."""
    trials = sorted(tried, key=lambda trial: trial.value)
    return tuple(
        f"the footprint is not monotone: {field}={after.value} takes {after.footprint_bytes:,} bytes, less than the"
        f" {before.footprint_bytes:,} of {field}={before.value}; values that were not tried may behave otherwise"
        for before, after in pairwise(trials)
        if after.footprint_bytes < before.footprint_bytes
    )


def _bends(field: str, tried: Sequence[Trial]) -> tuple[str, ...]:
    """Where the footprint grows more slowly than before: another point of the program decides, or other kernels do."""
    trials = sorted(tried, key=lambda trial: trial.value)
    slopes = [
        (after.footprint_bytes - before.footprint_bytes) / (after.value - before.value)
        for before, after in pairwise(trials)
    ]
    for number, (slope, following) in enumerate(pairwise(slopes), start=1):
        if slope > 0 and 0 <= following < _BENT * slope:
            return (
                f"the footprint bends above {field}={trials[number].value}: it grows by {following:,.0f} bytes for each"
                f" one more, after {slope:,.0f} before",
            )
    return ()


def _recomputes(field: str, tried: Sequence[Trial]) -> tuple[str, ...]:
    """Where XLA begins to recompute on its own."""
    found = recomputing_of(tried)
    if found is None:
        return ()
    trial = next(trial for trial in tried if trial.value == found.next_value)
    assert trial.pressure is not None
    pressed_bytes = trial.footprint_bytes if trial.pressed_footprint_bytes is None else trial.pressed_footprint_bytes
    num_values = trial.pressure.recomputed_values
    other = f" instead of {trial.footprint_bytes:,}" if trial.pressed_footprint_bytes is not None else ""
    return (
        f"XLA begins to recompute between {field}={found.value} and {found.next_value}, which makes steps slower: at"
        f" {found.next_value} it recomputes {num_values:,} value{'' if num_values == 1 else 's'}"
        f" ({trial.pressure.recomputed_flops:,} FLOP of matrix products) and takes {pressed_bytes:,} bytes{other}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedTechniques:
    """One combination that was compiled.

    Attributes:
        techniques: by label; empty for none.
        cost: what it costs; its recomputed operations are those of the compiled step.
        footprint_bytes: as the compiler has it; None where it failed, and then `problem` says why.
        verdict: whether it fits; None where it failed.
        host_bytes: in host memory that the step holds, beside the footprint.
        at_least_seconds: the roofline bound of a step; None where it has none.
        seconds: what lowering and compiling took.
        step_seconds: the median of the steps that were run; None where it was not run.
    """

    techniques: tuple[str, ...]
    cost: Cost
    footprint_bytes: int | None
    host_bytes: int = 0
    at_least_seconds: float | None = None
    seconds: float = 0.0
    step_seconds: float | None = None
    problem: str = ""
    verdict: Verdict | None = None

    @property
    def label(self) -> str:
        """The techniques, joined with `+`."""
        return "+".join(self.techniques)

    @property
    def name(self) -> str:
        return self.label or "baseline"

    @property
    def needed_bytes(self) -> int | None:
        """The footprint, or the pool that it needs if that is more, since a piece finds no place; None: it failed."""
        if self.footprint_bytes is None:
            return None
        return max(self.footprint_bytes, (self.verdict.needed_bytes if self.verdict else None) or 0)

    def fits(self, budget_bytes: int) -> bool:
        """Whether it was compiled, and that much is enough."""
        return self.needed_bytes is not None and self.needed_bytes <= budget_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChange:
    """How a user does one technique in code of their own: what to do in a sentence, and the line that does it."""

    technique: str
    sentence: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TechniquesResult:
    """The answer and what it rests on.

    Attributes:
        subject: what must fit; `settings` are the preset and the fields that were asked for, in words.
        ranked: what was compiled and fits, the best first; empty where nothing does.
        others: what was compiled and does not fit, or failed, in the order in which it was made.
        num_combinations: how many there are; `num_inferred` of them are cheaper than the answer and were not compiled,
            since one that should hold less does not fit.
        left_out: techniques that were not considered, with the reason, by label.
        contradictions: sentences on techniques that hold more here than what they were expected to hold less than.
        changes: the code changes of the answer.
        command: the command line that profiles the answer; empty where there is none.
    """

    subject: str
    settings: str
    target: str
    memory_bytes: int
    budget_bytes: int
    ranked: tuple[TriedTechniques, ...]
    others: tuple[TriedTechniques, ...]
    num_combinations: int
    num_inferred: int
    left_out: Mapping[str, str]
    contradictions: tuple[str, ...]
    changes: tuple[CodeChange, ...]
    command: str

    @property
    def answer(self) -> TriedTechniques | None:
        return self.ranked[0] if self.ranked else None

    @property
    def num_compiled(self) -> int:
        return len(self.ranked) + len(self.others)

    @property
    def reserve_bytes(self) -> int:
        """What of the memory a step may not take."""
        return max(self.memory_bytes - self.budget_bytes, 0)

    @property
    def verdict(self) -> Verdict | None:
        """Of the answer; if nothing fits, of the smallest that was compiled."""
        return (self.answer or self.smallest).verdict

    @property
    def smallest(self) -> TriedTechniques:
        """The one that takes the least memory of those that were compiled."""
        compiled = [each for each in (*self.ranked, *self.others) if each.footprint_bytes is not None]
        return min(compiled, key=lambda each: each.footprint_bytes or 0)
