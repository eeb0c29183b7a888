"""Find the largest value of a field with which a workload still fits: the library behind `memprof fit`.

Each footprint comes from a compile in a child process; `studies.fit.search` decides which values to compile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import lcm
from typing import TypeGuard

from memprof.analysis.hlo.decoded import FreshCapture
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture, Target, Topology
from memprof.analysis.records.categories import Role
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError, unknown_name
from memprof.sources.jax.processes.launch import compile_in_child
from memprof.sources.jax.processes.task import Task
from memprof.sources.jax.targets.resolve import AskedTarget, mesh_option
from memprof.sources.jax.xla.portable_program import TO_THE_PLAN, CompileSettings
from memprof.studies.engine import XLA, EngineBuild, of_engine, of_model
from memprof.studies.fit.budget import Budget, MemoryRequest
from memprof.studies.fit.devices import find_fewest, numbers_of_devices, of_devices
from memprof.studies.fit.results import DEVICES, FitResult, LargerValue, Trial, batch_of, recomputing_of
from memprof.studies.fit.search import NothingFitsError, find_largest
from memprof.studies.subject import Subject, is_model_file, request_digest, run_command
from memprof.studies.torch_step import FRAMEWORK, TorchTrace
from memprof.workloads.build import BuiltInStep
from memprof.workloads.composition import apply_techniques, parse_techniques
from memprof.workloads.train_config import TrainConfig

_LARGEST_STEP = 4096
_MAX_NARROWINGS = 6  # compiles that narrow down the value above which XLA recomputes


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRequest:
    """The request.

    Attributes:
        subject: the subject that must fit, under `techniques`, joined by `+`.
        field: an integer field of the workload's configuration, or an integer parameter of the user's function.
            `devices` means the number of devices of the target's mesh, if it has one.
        memory: memory of the device, and the device to compile for.
        multiple_of: only multiples of it are tried; None means the multiple that the techniques and the model require.
        settings: settings of the compiles.
        engine, framework: `xla` or `tensorrt`, which runs the step; `jax` or `torch`, which traces it. With `tensorrt`
            or `torch` the target is never None.
        answer_only: whether to skip the compiles for a larger pool and for the start of XLA's own recomputation.
    """

    subject: Subject
    techniques: str
    field: str
    memory: MemoryRequest
    multiple_of: int | None = None
    settings: CompileSettings = TO_THE_PLAN
    engine: str = XLA
    framework: str = "jax"
    answer_only: bool = False

    @property
    def varies_mesh(self) -> bool:
        """Whether the mesh is varied instead of a field."""
        target = self.memory.target
        return self.field == DEVICES and target is not None and target.topology.num_devices > 1

    def subject_with(self, value: int | None) -> Subject:
        """Return the subject with a value of the field; None means its own value."""
        return self.subject if value is None or self.varies_mesh else self.subject.with_override(self.field, value)

    def target_with(self, value: int | None) -> AskedTarget:
        """Return the target with a number of devices, if that is varied."""
        target = self.memory.target
        return of_devices(target, value) if self.varies_mesh and target is not None and value is not None else target

    def task(self, value: int | None) -> Task:
        """Return the compile for a value.

        Raises:
            MemprofError: the step cannot be built with that value, as far as this is known without the user's code.
        """
        return self.subject_with(value).task(
            of_model(self.techniques), target=self.target_with(value), settings=self.settings
        )

    @property
    def is_compiled(self) -> bool:
        """Whether XLA compiles the step."""
        return self.engine == XLA and self.framework != FRAMEWORK

    def build(self, value: int | None) -> EngineBuild | TorchTrace:
        """Return the engine build or the trace for a value, if XLA does not compile the step."""
        target = self.target_with(value)
        assert isinstance(target, Target)  # both are for named devices
        if self.framework == FRAMEWORK:
            return TorchTrace(subject=self.subject_with(value), techniques=self.techniques, target=target)
        return EngineBuild(
            subject=self.subject_with(value),
            techniques=self.techniques,
            target=target,
            timeout_seconds=self.settings.timeout_seconds,
        )

    def digest(self, value: int | None) -> str:
        """Return the digest that distinguishes the compile for a value from others.

        Raises:
            MemprofError: see `task`.
        """
        return request_digest(self.task(value)) if self.is_compiled else self.build(value).digest

    def check(self, value: int | None) -> None:
        """Raise `MemprofError` if the step cannot be built with a value, as far as this is known in advance."""
        if not self.is_compiled:
            self.build(value).check()
        if self.framework != FRAMEWORK and not is_model_file(self.subject.name):
            self.task(value)

    def compiled(self, value: int | None, *, progress: Callable[[str], None]) -> FreshCapture:
        """Return the capture for a value, compiled in a child process."""
        if not self.is_compiled:
            return self.build(value).capture(progress=progress)
        task = self.task(value)
        fresh = compile_in_child(task, progress=progress)
        return replace(fresh, capture=replace(fresh.capture, request=request_digest(task)))

    @property
    def labels(self) -> tuple[str, ...]:
        """The techniques as single labels."""
        if self.framework == FRAMEWORK:
            return tuple(filter(None, self.techniques.split("+")))
        labels = (applied.label for applied in parse_techniques(of_model(self.techniques)))
        return (*labels, *of_engine(self.techniques))

    def command(self, value: int) -> str:
        """Return the command line that profiles a value."""
        engine = None if self.engine == XLA else self.engine
        framework = FRAMEWORK if self.framework == FRAMEWORK else None
        return run_command(
            self.subject_with(value), self.target_with(value), self.techniques, engine=engine, framework=framework
        )

    def is_of_it(self, capture: Capture) -> bool:
        """Return whether this fit would compile the same capture."""
        value = capture.target.topology.num_devices if self.varies_mesh else capture.config.get(self.field)
        digests = {self.digest(None)}
        if _is_number(value):
            with suppress(MemprofError):
                digests.add(self.digest(value))
        return capture.request in digests


def check_fit(request: FitRequest) -> None:
    """Check for mistakes that can be found before any compile.

    Raises:
        MemprofError: for an unknown name, a bad value, or an unknown amount of memory.
    """
    request.memory.check()
    request.check(None)
    if is_model_file(request.subject.name) or request.framework == FRAMEWORK:
        return
    recipe = request.task(None).recipe
    if isinstance(recipe, BuiltInStep) and not request.varies_mesh:
        _start(request, recipe.plan().flat_config())
        _step(request)


def fit(
    request: FitRequest,
    *,
    progress: Callable[[str], None],
    keep: Callable[[Capture, int | None], None],
) -> FitResult:
    """Compile for one value after another until one fits and the next one does not.

    Args:
        progress: called with the current activity.
        keep: called with each capture as soon as it exists, and with the field's value in it.

    Raises:
        NothingFitsError: not even the smallest value fits; the message has the arithmetic.
        MemprofError: the request has a mistake, or the footprint does not depend on the field.
        WorkloadError: a compile failed.
    """
    check_fit(request)
    compiles = _Compiles(request, progress=progress, keep=keep)
    # The first compile is of the unchanged subject: only the user's own code knows the field's own value.
    first = compiles.add(None)
    own_value = compiles.trials[0].value
    budget = request.memory.budget(first.target, first.pool)
    if request.field == DEVICES:
        return _fewest_devices(request, compiles, budget)
    budget.check_params_fit(first)
    step, step_reason = _step(request, first)
    try:
        value = find_largest(
            compiles.needed_in(budget),
            start=max(own_value // step, 1) * step,
            step=step,
            budget_bytes=budget.size_bytes,
            fixed_bytes=_fixed_bytes(first) if _is_batch_size(first, own_value) else None,
            field=request.field,
        )
    except NothingFitsError as error:
        smallest = min(compiles.reports)
        raise NothingFitsError(
            f"not even {request.field}={smallest} fits: {budget.arithmetic(compiles.reports[smallest])}"
        ) from error
    larger = None
    if not request.answer_only:
        larger = _larger_value(request, compiles, budget, value=value, step=step)
        _narrow_recomputing(compiles, step=step)
    return _result(
        request,
        compiles,
        budget,
        value=value,
        next_value=value + step,
        step=step,
        step_reason=step_reason,
        larger=larger,
    )


def own_value(request: FitRequest, *, progress: Callable[[str], None] = lambda stage: None) -> int:
    """Return the field's own value. For a user's step this needs a compile.

    Raises:
        MemprofError: the step has no such field, or its value is not a whole number.
    """
    is_of_jax = request.framework != FRAMEWORK and not is_model_file(request.subject.name)
    recipe = request.task(None).recipe if is_of_jax else None
    if isinstance(recipe, BuiltInStep):
        return _start(request, recipe.plan().flat_config())
    return _start(request, request.compiled(None, progress=progress).capture.config)


def _larger_value(
    request: FitRequest, compiles: _Compiles, budget: Budget, *, value: int, step: int
) -> LargerValue | None:
    """Return the largest value that fits with the largest pool that the card allows."""
    largest = budget.largest
    if largest is None:
        return None
    found = find_largest(
        compiles.needed_in(largest), start=value, step=step, budget_bytes=largest.size_bytes, field=request.field
    )
    report = compiles.reports[found]
    fraction = budget.verdict(report).mem_fraction
    if found == value or fraction is None:
        return None
    return LargerValue(value=found, mem_fraction=fraction, footprint_bytes=report.unpressed.footprint_bytes)


def _narrow_recomputing(compiles: _Compiles, *, step: int) -> None:
    """Compile values between the largest without XLA's own recomputation and the smallest with it."""
    for _ in range(_MAX_NARROWINGS):
        found = recomputing_of(compiles.trials)
        if found is None or found.next_value - found.value <= step:
            return
        num_steps = (found.next_value - found.value) // step
        compiles.add(found.value + max(num_steps // 2, 1) * step)


def _fewest_devices(request: FitRequest, compiles: _Compiles, budget: Budget) -> FitResult:
    start = compiles.trials[0].value
    topology = request.memory.target.topology if request.varies_mesh and request.memory.target else Topology()
    unit = topology.num_devices // next(iter(topology.axes.values()), topology.num_devices)
    numbers = numbers_of_devices(start, unit=unit, least=2 if request.varies_mesh else 1)
    try:
        found = find_fewest(compiles.needed_in(budget), numbers=numbers, start=start, budget_bytes=budget.size_bytes)
    except NothingFitsError as error:
        largest = compiles.reports[max(compiles.reports)]
        raise NothingFitsError(f"{error}; {budget.arithmetic(largest)}") from error
    reason = f"fewer devices were not tried: {found.refusal.rstrip('.')}" if found.refusal else ""
    if found.number == numbers[0] and request.varies_mesh:
        reason = f"fewer than {found.number} devices cannot form a mesh"
    return _result(request, compiles, budget, value=found.number, next_value=found.below, step=unit, step_reason=reason)


def _result(
    request: FitRequest,
    compiles: _Compiles,
    budget: Budget,
    *,
    value: int,
    next_value: int | None,
    step: int,
    step_reason: str,
    larger: LargerValue | None = None,
) -> FitResult:
    report = compiles.reports[value]
    return FitResult(
        subject=request.subject.label,
        techniques=request.labels,
        target=report.target.name,
        field=request.field,
        value=value,
        next_value=next_value,
        step=step,
        step_reason=step_reason,
        memory_bytes=budget.memory_bytes,
        budget_bytes=budget.size_bytes,
        verdict=budget.verdict(report),
        tried=tuple(
            replace(trial, needed_bytes=budget.needed_bytes(compiles.reports[trial.value])) for trial in compiles.trials
        ),
        command=request.command(value),
        mesh=mesh_option(report.target.topology),
        num_devices=report.target.topology.num_devices,
        batch=batch_of(report),
        larger=larger,
        doubts=report.doubts if request.framework == FRAMEWORK else (),
    )


class _Compiles:
    """The compiles of a fit so far.

    Attributes:
        reports: reports by the field's value.
        trials: trials in the order of the compiles.
    """

    def __init__(
        self,
        request: FitRequest,
        *,
        progress: Callable[[str], None],
        keep: Callable[[Capture, int | None], None],
    ) -> None:
        self.reports: dict[int, Report] = {}
        self.trials: list[Trial] = []
        self._request = request
        self._progress = progress
        self._keep = keep

    def needed_in(self, budget: Budget) -> Callable[[int], int]:
        """Return a function from a value to the bytes that it needs of a budget; it compiles if necessary."""

        def needed_bytes(value: int) -> int:
            return budget.needed_bytes(self.reports[value] if value in self.reports else self.add(value))

        return needed_bytes

    def add(self, value: int | None) -> Report:
        """Compile for a value of the field; None means its own value."""
        began = time.monotonic()
        fresh = self._compile(value)
        self._keep(fresh.capture, value)
        report = analyze(fresh.capture, fresh.decoded, with_order=False)
        actual = _start(self._request, report.config) if value is None else value
        self.reports[actual] = report
        seconds = time.monotonic() - began
        self.trials.append(
            Trial(
                value=actual,
                footprint_bytes=report.unpressed.footprint_bytes,
                seconds=seconds,
                needed_bytes=report.unpressed.footprint_bytes,  # until the budget is known
                pressure=report.pressure,
                pressed_footprint_bytes=None if report.pressure is None else report.footprint_bytes,
            )
        )
        return report

    def _compile(self, value: int | None) -> FreshCapture:
        field, number = self._request.field, len(self.trials) + 1
        name = f"{field} as it is" if value is None else f"{field}={value}"
        return self._request.compiled(
            value, progress=lambda stage: self._progress(f"{number}. compile, {name}: {stage}")
        )


def _start(request: FitRequest, config: Mapping[str, object]) -> int:
    """Return the field's own value."""
    if request.varies_mesh and request.memory.target is not None:
        return request.memory.target.topology.num_devices
    if request.field == DEVICES and DEVICES not in config:
        raise MemprofError(
            f"{request.subject.label} has no parameter devices: give the mesh whose first axis is to be varied, --mesh"
            " fsdp=8 for example, or a function with such a parameter"
        )
    if request.field not in config:
        numbers = [name for name, value in config.items() if _is_number(value)]
        if not numbers:
            raise MemprofError(
                f"{request.subject.label} has no parameter '{request.field}', and no other that is a number: name a"
                " function with such a parameter"
            )
        raise unknown_name(f"number to vary in {request.subject.label}", request.field, numbers)
    value = config[request.field]
    if not _is_number(value):
        raise MemprofError(
            f"{request.field} of {request.subject.label} is {value!r}, not a whole number; vary another field"
        )
    assert isinstance(value, int)
    if value < 1:
        raise MemprofError(f"{request.field} starts at {value}; give it a value above zero with --set")
    return value


def _is_batch_size(report: Report, value: int) -> bool:
    """Return whether a field's value is the common first axis of the batch's arrays."""
    sizes = {leaf.shape[:1] for leaf in report.arguments if leaf.role is Role.BATCH}
    return sizes == {(value,)}


def _fixed_bytes(report: Report) -> int:
    """Return an estimate of the bytes that do not grow with the batch."""
    return sum(size for category, size in report.unpressed.categories.items() if category.is_fixed)


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _step(request: FitRequest, report: Report | None = None) -> tuple[int, str]:
    """Return the number that the value must be a multiple of, and the reason if it is not 1.

    Args:
        report: report for the field's own value; None before the first compile.
    """
    if request.multiple_of is not None:
        return request.multiple_of, f"requested with --multiple-of {request.multiple_of}"
    if not request.subject.is_built_in:
        # Only a compile shows the values that a user's function accepts; the requirement of accumulation is known.
        if request.framework == FRAMEWORK:
            return 1, ""
        step = apply_techniques(TrainConfig(), parse_techniques(of_model(request.techniques))).num_minibatches
        reason = f"{request.techniques} splits the batch into {step} equal parts" if step > 1 else ""
        batch = None if report is None else batch_of(report)
        if batch is not None and batch.in_all == _start(request, report.config if report else {}):
            parts = batch.in_all // batch.on_a_device
            if step % parts:
                step, reason = lcm(step, parts), f"the batch is divided over {parts} devices"
        return step, reason
    refusal = ""
    for step in range(1, _LARGEST_STEP + 1):
        try:
            for value in (step, 2 * step, 3 * step):
                request.check(value)
        except MemprofError as error:
            refusal = refusal or str(error).rstrip(".")
        else:
            return step, f"others are not valid: {refusal}" if refusal else ""
    raise MemprofError(f"no {request.field} can be varied: {refusal}")
