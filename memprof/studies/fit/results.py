"""The result of a search, with all its trials: the largest value of a field, or the cheapest techniques."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.pool import Verdict
from memprof.analysis.records.pressure import Pressure
from memprof.analysis.records.report import Report
from memprof.studies.fit.cheapest import Cost

DEVICES = "devices"  # the varied field: the devices of the mesh, or a parameter of that name
# A slope below this part of the one before it is a bend. Slopes of one straight part differ by less: XLA pads and
# shares buffers a little differently from size to size.
_BENT = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One compile: the value, its footprint by the compiler, and the time of lowering and compiling.

    Attributes:
        footprint_bytes: footprint of the plan without memory pressure.
        needed_bytes: the pool that it needs: the footprint, or more if a piece finds no place.
        pressure: values that XLA recomputes on its own; None if there are none.
        pressed_footprint_bytes: footprint of the plan under that pressure.
    """

    value: int
    footprint_bytes: int
    seconds: float
    needed_bytes: int
    pressure: Pressure | None = None
    pressed_footprint_bytes: int | None = None

    def fits(self, budget_bytes: int) -> bool:
        """Return whether that budget is enough."""
        return self.needed_bytes <= budget_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputing:
    """The range in which XLA begins to recompute on its own, which makes steps slower.

    Attributes:
        value: the largest value that was compiled without recomputation.
        next_value: the smallest value that was compiled with it.
    """

    value: int
    next_value: int


def recomputing_of(tried: Iterable[Trial]) -> Recomputing | None:
    """Return the range in which XLA begins to recompute; None if no trial shows it."""
    trials = sorted(tried, key=lambda trial: trial.value)
    number = next((number for number, trial in enumerate(trials) if trial.pressure is not None), 0)
    return Recomputing(value=trials[number - 1].value, next_value=trials[number].value) if number else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LargerValue:
    """A larger value that fits if JAX's pool is enlarged to at least this fraction."""

    value: int
    mem_fraction: float
    footprint_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The examples of a step: on all devices together, and on one device."""

    in_all: int
    on_a_device: int


def batch_of(report: Report) -> Batch | None:
    """Return the size of the batch, the common first axis of its arrays; None if they have none or differ."""
    on_a_device = {buffer.op: buffer.shape for buffer in report.buffers if buffer.category is Category.BATCH}
    leaves = [leaf for leaf in report.arguments if leaf.role is Role.BATCH and leaf.parameter_number is not None]
    found = {(leaf.shape[:1], on_a_device.get(leaf.path, ())[:1]) for leaf in leaves}
    if len(found) != 1 or ((), ()) in found:
        return None
    [((in_all, *_), own)] = found
    return Batch(in_all=in_all, on_a_device=own[0]) if own else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """The result with all its trials.

    Attributes:
        subject: the profiled subject; `techniques` are applied to it, by label.
        value: a value of `field` that fits, while `next_value`, the one after it, does not. It is the largest that fits
            if the footprint is monotone; otherwise a larger, untried value may fit too. For `devices` it is the
            smallest value, and `next_value` the one before it; None if the step cannot be compiled for that number.
        step: only multiples of it were tried; `step_reason` says why if it is not 1.
        memory_bytes: memory of the device.
        budget_bytes: memory that a step may use: the pool, less the bytes that the user wants to stay free.
        verdict: verdict on `value`.
        tried: every compile, in order.
        command: the command line that profiles the answer.
        mesh: mesh of the answer, as the user writes it; empty for one device.
        num_devices: number of devices of that mesh; footprints are those of one device.
        batch: batch of the answer; None if it is unknown.
        larger: the largest value that fits if the pool is made as large as the card allows; None if it is no larger.
        doubts: sentences about uncertain facts of a traced step.
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
    doubts: tuple[str, ...] = ()

    @property
    def reserve_bytes(self) -> int:
        """The part of the memory that a step may not use."""
        return max(self.memory_bytes - self.budget_bytes, 0)

    @property
    def is_of_devices(self) -> bool:
        """Whether the number of devices was varied."""
        return self.field == DEVICES

    def footprint_of(self, value: int) -> int:
        """Return the footprint of a tried value, without memory pressure."""
        return next(trial.footprint_bytes for trial in self.tried if trial.value == value)

    def findings(self) -> tuple[str, ...]:
        """Sentences about uncertain facts, and about footprints that do not grow along a straight line."""
        if self.is_of_devices:
            return self.doubts
        return (
            *self.doubts,
            *_falls(self.field, self.tried),
            *_bends(self.field, self.tried),
            *_recomputes(self.field, self.tried),
        )

    @property
    def recomputing(self) -> Recomputing | None:
        """The range in which XLA begins to recompute on its own; None if it recomputes in no trial, or in all."""
        return recomputing_of(self.tried)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """The result at one value of the other field.

    Attributes:
        at: value of the other field.
        found: the largest value that fits there; None if not even the smallest fits, as `refusal` says.
    """

    at: int
    found: FitResult | None
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCurve:
    """The points of a curve, in ascending order of `against`."""

    against: str
    points: tuple[CurvePoint, ...]

    @property
    def any_found(self) -> FitResult:
        """One fit of the curve; subject, techniques and budget are the same in all fits."""
        return next(point.found for point in self.points if point.found is not None)


def _falls(field: str, tried: Sequence[Trial]) -> tuple[str, ...]:
    """Return sentences on larger values that use less memory, so that untried values may also fit."""
    trials = sorted(tried, key=lambda trial: trial.value)
    return tuple(
        f"the footprint is not monotone: {field}={after.value} takes {after.footprint_bytes:,} bytes, less than the"
        f" {before.footprint_bytes:,} of {field}={before.value}; untried values may differ, too"
        for before, after in pairwise(trials)
        if after.footprint_bytes < before.footprint_bytes
    )


def _bends(field: str, tried: Sequence[Trial]) -> tuple[str, ...]:
    """Return a sentence on a slower growth of the footprint: another program point decides, or other kernels do."""
    trials = sorted(tried, key=lambda trial: trial.value)
    slopes = [
        (after.footprint_bytes - before.footprint_bytes) / (after.value - before.value)
        for before, after in pairwise(trials)
    ]
    for number, (slope, following) in enumerate(pairwise(slopes), start=1):
        if slope > 0 and 0 <= following < _BENT * slope:
            return (
                f"the footprint grows more slowly above {field}={trials[number].value}: by {following:,.0f} bytes per"
                f" unit, after {slope:,.0f} below",
            )
    return ()


def _recomputes(field: str, tried: Sequence[Trial]) -> tuple[str, ...]:
    """Return a sentence on the range in which XLA begins to recompute on its own."""
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
        f" ({trial.pressure.recomputed_flops:,} FLOPs of matrix products) and takes {pressed_bytes:,} bytes{other}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedTechniques:
    """One compiled combination.

    Attributes:
        techniques: techniques by label; empty for none.
        cost: its cost, with the recomputed FLOPs of the compiled step.
        footprint_bytes: footprint by the compiler; None if it failed, for the reason in `problem`.
        verdict: whether it fits; None if it failed.
        host_bytes: host memory that the step holds, beside the footprint.
        at_least_seconds: the roofline bound of a step; None if it has no bound.
        seconds: time of lowering and compiling.
        step_seconds: median time of a step; None if it was not run.
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
        """The techniques, joined by `+`."""
        return "+".join(self.techniques)

    @property
    def name(self) -> str:
        return self.label or "baseline"

    @property
    def needed_bytes(self) -> int | None:
        """The footprint, or the pool that it needs if a piece finds no place in less; None if it failed."""
        if self.footprint_bytes is None:
            return None
        return max(self.footprint_bytes, (self.verdict.needed_bytes if self.verdict else None) or 0)

    def fits(self, budget_bytes: int) -> bool:
        """Return whether it was compiled and that budget is enough."""
        return self.needed_bytes is not None and self.needed_bytes <= budget_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChange:
    """The code change for one technique: an instruction in a sentence, and code that runs in any step, or ""."""

    technique: str
    sentence: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TechniquesResult:
    """The answer with its evidence.

    Attributes:
        subject: the subject that must fit; `settings` are its preset and the requested fields, in words.
        ranked: compiled combinations that fit, best first; empty if none fits.
        others: compiled combinations that do not fit or failed, in order.
        num_combinations: number of combinations. `num_inferred` of them are cheaper than the answer and were not
            compiled, because one that should hold less does not fit.
        left_out: techniques that were not considered, with the reason, by label.
        contradictions: sentences on techniques that hold more than others, against the expected order.
        changes: the code changes of the answer.
        command: the command line that profiles the answer; empty without an answer.
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
        """The part of the memory that a step may not use."""
        return max(self.memory_bytes - self.budget_bytes, 0)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the answer; if no combination fits, on the smallest compiled one."""
        return (self.answer or self.smallest).verdict

    @property
    def smallest(self) -> TriedTechniques:
        """The compiled combination that uses the least memory."""
        compiled = [each for each in (*self.ranked, *self.others) if each.footprint_bytes is not None]
        return min(compiled, key=lambda each: each.footprint_bytes or 0)
