"""A step whose checkpoints a plan compiles and predicts: the original step, or the step after allowed changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from math import isclose

from jax.extend.core import ClosedJaxpr

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Target
from memprof.analysis.records.checkpoints import Block, Checkpoints
from memprof.analysis.records.report import Report
from memprof.sources.jax.checkpointing.apply import checkpointed
from memprof.sources.jax.checkpointing.block_programs import BlockProgram, blocks_of
from memprof.sources.jax.checkpointing.blocks import differentiated_loops, find_repeated
from memprof.sources.jax.checkpointing.layers import large_functions, layers_of
from memprof.sources.jax.checkpointing.liveness import estimated_peaks
from memprof.sources.jax.checkpointing.operations import block_of
from memprof.sources.jax.compile import capture_of, traced_jaxpr
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.changes.checkpoint_places import CLEARLY, best_place
from memprof.studies.plan.candidates import point_of, signatures_of
from memprof.studies.plan.choice import Choice, cheapest_choice, choice_of, sizes_of
from memprof.studies.plan.functions import blocks_of_functions, checkpointed_functions
from memprof.studies.plan.groups import in_groups
from memprof.studies.plan.placement import Placement
from memprof.studies.plan.plan import PlanPoint
from memprof.studies.plan.predictions import Compiled, predicted_bytes
from memprof.studies.plan.times import StepTime, step_time

_SHARES_IN_GROUPS = (1.0, 0.5, 0.2, 0.0)  # of all that could be kept: the choices for iterations in groups
_SAME = 1e-3  # relative difference up to which two choices share a compile


@dataclass(slots=True, kw_only=True)
class Compiler:
    """Compiles steps for a target, and counts the compiles for the progress messages.

    Attributes:
        host_bandwidth: bytes per second in each direction of the host link; None: nothing is offloaded.
    """

    target: Target
    progress: Callable[[str], None]
    host_bandwidth: float | None = None
    num_compiles: int = 0

    def report(self, spec: StepSpec, name: str) -> Report:
        """Compile a step. The name is shown as its progress."""
        self.num_compiles += 1
        number = self.num_compiles
        fresh = capture_of(spec, self.target, progress=lambda stage: self.progress(f"{number}: {name}, {stage}"))
        return analyze(fresh.capture, fresh.decoded, with_order=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedStep:
    """A step after changes, before checkpoints.

    Attributes:
        blocks: the parts of the step that get a checkpoint.
        placement: where these parts are.
        points: its compiles; the first is without checkpoints.
        around_bytes: bytes of its arguments and results.
        has_user_functions: whether user functions compute these parts, or produce many bytes.
        is_settled: whether no other place for the checkpoints remains to be compared with these parts.
        waiting_seconds: lower bound on its wait for communication, without checkpoints.
        peaks: the estimated peaks of its traces, by checkpoints.
    """

    spec: StepSpec
    blocks: list[Block]
    placement: Placement
    compiler: Compiler
    around_bytes: int
    has_user_functions: bool
    waiting_seconds: float
    is_settled: bool = True
    points: list[PlanPoint] = field(default_factory=list)
    peaks: dict[Checkpoints | None, tuple[int, ...]] = field(default_factory=dict)

    @property
    def is_of_layers(self) -> bool:
        """Whether its blocks are equal layers in sequence."""
        is_one = len(self.blocks) == 1 and self.placement.num_blocks > 1
        return is_one and self.placement.has_blocks and not self.placement.is_nested

    def around(self, checkpoints: Checkpoints) -> AbstractContextManager[object]:
        """Return the context in which the step is traced with checkpoints."""
        if self.placement.has_blocks:
            return checkpointed(checkpoints)
        return checkpointed_functions(self.placement.functions, checkpoints)

    def everything(self) -> Choice:
        """Return the choice that keeps all results that the backward pass needs."""
        return choice_of(self.blocks, signatures_of(self.blocks))

    @property
    def time(self) -> StepTime:
        """The estimate of its time, from its compiles so far."""
        speeds = self.compiler.target.speeds
        bandwidth = None if speeds is None else speeds.memory_bytes_per_second
        return step_time(self.points, bandwidth, is_loop=self.placement.is_loop)

    def fastest(self, budget_bytes: int, time: StepTime) -> Choice:
        """Return the choice within a budget of bytes that is estimated to be fastest."""
        return cheapest_choice(
            self.blocks,
            budget_bytes,
            self.compiler.host_bandwidth,
            recomputation=time.recomputation,
            seconds_per_byte=time.seconds_per_byte,
        )

    def choice(self, checkpoints: Checkpoints) -> Choice:
        """Return the choice behind checkpoints that are the same for all blocks."""
        return choice_of(self.blocks, checkpoints.kept, checkpoints.offloaded, self.compiler.host_bandwidth)

    def without_last(self, choice: Choice, number: int) -> Choice:
        """Return a choice that leaves the last blocks without a checkpoint, so that they keep everything.

        Their backward passes come first, so their results are freed before the other blocks are recomputed.
        """
        share = number / self.placement.num_blocks
        return replace(
            choice,
            size_bytes=round(choice.size_bytes + share * (self.everything().size_bytes - choice.size_bytes)),
            repeated_seconds=(1 - share) * choice.repeated_seconds,
            num_first=self.placement.num_blocks - number,
        )

    def in_groups(self) -> list[Choice]:
        """Return choices with iterations or layers in groups, fastest first; empty if groups save nothing."""
        if not self.placement.has_blocks or self.compiler.host_bandwidth is not None:
            return []
        everything, time = self.everything().size_bytes, self.time
        seconds: dict[Choice, float] = {}
        for share in _SHARES_IN_GROUPS:
            choice = self.fastest(int(share * everything), StepTime())
            grouped = in_groups(self.blocks, choice)
            if grouped is not None:  # the results of all groups are stored, if not at once
                seconds[grouped] = time.of(replace(choice, repeated_seconds=grouped.repeated_seconds))
        return sorted(seconds, key=lambda each: seconds[each])

    def known(self, choice: Choice) -> PlanPoint | None:
        """Return the compile of a choice or of a practically equal one; None if it is not compiled yet."""

        def is_same(point: PlanPoint) -> bool:
            if point.checkpoints is None:
                return False
            return (
                (point.checkpoints.num_first, point.checkpoints.group_size) == (choice.num_first, choice.group_size)
                and point.checkpoints.offloaded == choice.offloaded
                and isclose(point.kept_bytes, choice.size_bytes, rel_tol=_SAME, abs_tol=1.0)
                and isclose(point.repeated_seconds, choice.repeated_seconds, rel_tol=_SAME)
            )

        return next(filter(is_same, self.points), None)

    def compiled(
        self,
        name: str,
        checkpoints: Checkpoints,
        *,
        kept_bytes: int,
        repeated_seconds: float,
        waiting_seconds: float = 0.0,
    ) -> PlanPoint:
        """Compile the step with checkpoints.

        Args:
            waiting_seconds: modeled wait for transfers, used if the compiled schedule does not show it.
        """
        predicted = self.predicted(checkpoints)
        with self.around(checkpoints):
            report = self.compiler.report(self.spec, name)
        if checkpoints.offloaded and report.unpressed.roofline is not None:
            waiting_seconds = max(_waiting_seconds(report) - self.waiting_seconds, 0.0)
        point = point_of(
            name,
            report,
            checkpoints,
            kept_bytes=kept_bytes,
            repeated_seconds=repeated_seconds,
            waiting_seconds=waiting_seconds,
        )
        self.points.append(replace(point, predicted_bytes=predicted))
        return self.points[-1]

    def predicted(self, checkpoints: Checkpoints) -> int:
        """Predict the footprint of the step with checkpoints, from its trace and the compiles so far."""
        if checkpoints not in self.peaks:
            with self.around(checkpoints):
                self.peaks[checkpoints] = _peaks_of(traced_jaxpr(self.spec, self.compiler.target), self.compiler.target)
        compiled = [
            Compiled(
                checkpoints=each.checkpoints, peaks=self.peaks[each.checkpoints], footprint_bytes=each.footprint_bytes
            )
            for each in self.points
        ]
        return predicted_bytes(
            checkpoints,
            self.peaks[checkpoints],
            compiled,
            around_bytes=self.around_bytes,
            sizes=sizes_of(self.blocks),
            everything=self.everything().kept,
            num_blocks=self.placement.num_blocks,
        )


def changed_step(name: str, spec: StepSpec, report: Report, compiler: Compiler) -> ChangedStep:
    """Return a compiled step, with its blocks. A step that differentiates nothing in reverse mode has none."""
    with checkpointed(None) as functions:
        traced = traced_jaxpr(spec, compiler.target)
    compiler.progress("choosing")
    blocks = _blocks([each for closed in functions for each in blocks_of(closed)], compiler)
    has_loops = any(find_repeated(each.jaxpr) is None and bool(differentiated_loops(each.jaxpr)) for each in functions)
    kept_bytes = choice_of(blocks, signatures_of(blocks)).size_bytes
    point = point_of(name, report, None, kept_bytes=kept_bytes, repeated_seconds=0.0)
    peaks: dict[Checkpoints | None, tuple[int, ...]] = {None: _peaks_of(traced, compiler.target)} if blocks else {}
    totals = report.compiler
    return ChangedStep(
        spec=spec,
        blocks=blocks,
        placement=Placement(
            num_blocks=sum(block.count for block in blocks),
            is_loop=has_loops,
            is_nested=any(block.inner_count is not None for block in blocks),
            titles=tuple(dict.fromkeys(layer.place for closed in functions for layer in layers_of(closed))),
        ),
        compiler=compiler,
        around_bytes=totals.argument_bytes + totals.output_bytes - totals.alias_bytes,
        has_user_functions=any(layers_of(each) or large_functions(each) for each in functions),
        waiting_seconds=_waiting_seconds(report),
        points=[point],
        peaks=peaks,
    )


def in_best_place(step: ChangedStep, budget_bytes: int) -> ChangedStep:
    """Return a step with its checkpoints around user functions, if they are a better place than its blocks.

    Traces decide, without a compile. An estimate barely below that of the unchanged step says nothing about a search
    around the blocks.

    Args:
        budget_bytes: the blocks are the place if checkpoints around them are estimated to fit.
    """
    if not step.has_user_functions:
        return step
    spec, target = step.spec, step.compiler.target
    step.compiler.progress("choosing")
    unchanged_bytes, num_devices = min(step.peaks[None]), target.topology.num_devices
    # Checkpoints are assumed to change the estimate and the footprint without arguments and results by the same factor.
    share = (budget_bytes - step.around_bytes) / max(step.points[0].footprint_bytes - step.around_bytes, 1)
    enough_bytes = int(num_devices * share * unchanged_bytes)
    place = best_place(spec, target, enough_bytes=enough_bytes)
    step = replace(step, is_settled=place is None or place.peak_bytes > enough_bytes)
    if place is None or place.written is None:
        return step
    peak_bytes = place.peak_bytes // num_devices
    if place.has_blocks:
        keep_nothing = Checkpoints(kept=frozenset())
        step.predicted(keep_nothing)
        is_equal = min(step.peaks[keep_nothing]) == peak_bytes
        return replace(step, placement=replace(step.placement, functions=place.written)) if is_equal else step
    if peak_bytes > CLEARLY * unchanged_bytes:
        return step
    blocks = _blocks(blocks_of_functions(spec, target, place.written), step.compiler)
    kept_bytes = choice_of(blocks, signatures_of(blocks)).size_bytes
    return replace(
        step,
        blocks=blocks,
        placement=Placement(
            num_blocks=sum(block.count for block in blocks),
            is_loop=any(each.is_loop for each in place.written),
            functions=place.written,
            has_blocks=False,
        ),
        points=[replace(step.points[0], kept_bytes=kept_bytes)],
        peaks={None: step.peaks[None]},
    )


def _blocks(programs: Sequence[BlockProgram], compiler: Compiler) -> list[Block]:
    target, with_inputs = compiler.target, compiler.host_bandwidth is not None
    num_devices = target.topology.num_devices
    return [block_of(each, target.speeds, num_devices=num_devices, with_inputs=with_inputs) for each in programs]


def _waiting_seconds(report: Report) -> float:
    """Return a lower bound on the wait for communication, from the compiled schedule; 0 if unknown."""
    roofline = report.unpressed.roofline
    return 0.0 if roofline is None else roofline.communication_share * roofline.at_least_seconds


def _peaks_of(traced: ClosedJaxpr, target: Target) -> tuple[int, ...]:
    num_devices = target.topology.num_devices
    return tuple(peak // num_devices for peak in estimated_peaks(traced.jaxpr))
