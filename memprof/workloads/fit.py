"""The largest value of a field with which a workload still fits: the library behind `memprof fit`.

Each footprint is that of a compile, in a child process; `analysis.fitting.search` decides which values to compile.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from memprof.analysis.amounts import parse_bytes, parse_share
from memprof.analysis.capture import Capture
from memprof.analysis.categories import Category
from memprof.analysis.fitting.result import FitResult, Trial
from memprof.analysis.fitting.search import NothingFitsError, find_largest
from memprof.analysis.pipeline import analyze
from memprof.analysis.report import Report
from memprof.capture.launch import compile_in_child
from memprof.capture.targets.resolve import deviceless_target
from memprof.errors import MemprofError
from memprof.workloads.build import plan
from memprof.workloads.composition import apply_techniques, parse_techniques
from memprof.workloads.names import unknown_name
from memprof.workloads.subject import Subject
from memprof.workloads.train_config import TrainConfig

DEFAULT_RESERVE = Fraction(6, 100)
_LARGEST_STEP = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRequest:
    """What is asked for.

    Attributes:
        subject: what must fit, under `techniques`, joined with `+`.
        field: of the workload's configuration, or a parameter of the user's function: a whole number.
        target: what to compile for; None: the best there is.
        memory: the device's memory as the user wrote it; None: that of the target.
        reserve: an amount or a share of the memory that must stay free; None: `DEFAULT_RESERVE`.
        multiple_of: only multiples of it are of interest; None: of what the techniques and the model ask for.
    """

    subject: Subject
    techniques: str
    field: str
    target: str | None
    memory: str | None
    reserve: str | None
    multiple_of: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Budget:
    memory_bytes: int
    reserve_bytes: int
    reason: str


def check_fit(request: FitRequest) -> None:
    """Find the mistakes that can be found before anything is compiled.

    Raises:
        MemprofError: for an unknown name, a bad value, or a memory that is not known.
    """
    if request.target is not None and request.memory is None and request.target == "cpu":
        raise MemprofError("the CPU has no fixed amount of memory; say with --memory what must suffice")
    known = deviceless_target(request.target) if request.target is not None else None
    if request.memory is not None or known is not None:
        _budget(request, known.memory_bytes if known else None)
    request.subject.check([request.techniques])
    if request.subject.is_built_in:
        choices = plan(**request.subject.builder_arguments([request.techniques]))
        _start(request, choices.flat_config())
        _step(request)


def fit(
    request: FitRequest,
    *,
    progress: Callable[[str], None],
    keep: Callable[[Capture, int | None], None],
    timeout_seconds: float | None = None,
) -> FitResult:
    """Compile for one value after another until one fits and the next one does not.

    Args:
        progress: called with what is going on.
        keep: called with each capture as soon as it is there, and with the field's value in it.
        timeout_seconds: each compile is given up after so long; None: never.

    Raises:
        NothingFitsError: not even the smallest value does; the message has the arithmetic.
        MemprofError: a mistake in what was asked for, or the footprint does not depend on the field.
        WorkloadError: a compile failed.
    """
    check_fit(request)
    reports: dict[int, Report] = {}
    tried: list[Trial] = []

    def compile_for(value: int | None) -> Report:
        subject = request.subject if value is None else request.subject.with_override(request.field, value)
        name = f"{request.field} as it is" if value is None else f"{request.field}={value}"
        began = time.monotonic()
        capture = compile_in_child(
            subject.builder,
            subject.builder_arguments([request.techniques]),
            target=request.target,
            progress=lambda stage: progress(f"{len(tried) + 1}. compile, {name}: {stage}"),
            timeout_seconds=timeout_seconds,
        )
        keep(capture, value)
        report = analyze(capture)
        actual = _start(request, capture.config) if value is None else value
        reports[actual] = report
        seconds = time.monotonic() - began
        tried.append(Trial(value=actual, footprint_bytes=report.footprint_bytes, seconds=seconds))
        return report

    # The first compile is of the subject as it is: only the user's own code knows the value that it has by itself.
    first = compile_for(None)
    start = tried[0].value
    budget = _budget(request, first.target.memory_bytes)
    _check_params_fit(first, budget)
    step, step_reason = _step(request)
    start = max(start // step, 1) * step

    def measure(value: int) -> int:
        return (reports[value] if value in reports else compile_for(value)).footprint_bytes

    budget_bytes = budget.memory_bytes - budget.reserve_bytes
    try:
        value = find_largest(measure, start=start, step=step, budget_bytes=budget_bytes, field=request.field)
    except NothingFitsError as error:
        raise _nothing_fits(request.field, min(reports), reports, budget) from error
    return FitResult(
        subject=request.subject.label,
        techniques=request.techniques,
        target=first.target.name,
        field=request.field,
        value=value,
        step=step,
        step_reason=step_reason,
        memory_bytes=budget.memory_bytes,
        reserve_bytes=budget.reserve_bytes,
        reserve_reason=budget.reason,
        tried=tuple(tried),
        command=_command(request, value),
    )


def _budget(request: FitRequest, target_memory_bytes: int | None) -> _Budget:
    """The memory and what of it must stay free."""
    memory_bytes = parse_bytes(request.memory) if request.memory is not None else target_memory_bytes
    if memory_bytes is None:
        raise MemprofError("the target has no fixed amount of memory; say with --memory what must suffice")
    share = DEFAULT_RESERVE if request.reserve is None else parse_share(request.reserve)
    if request.reserve in ("0", "none"):
        share = Fraction(0)
    reserve_bytes = parse_bytes(request.reserve or "") if share is None else int(memory_bytes * share)
    if reserve_bytes >= memory_bytes:
        raise MemprofError(
            f"the reserve of {reserve_bytes:,} bytes leaves nothing of the memory of {memory_bytes:,}; make it smaller"
        )
    reason = (
        "6% for what lies outside XLA's pool, an estimate that is not measured on this device; --reserve changes it"
        if request.reserve is None
        else f"as asked for with --reserve {request.reserve}"
    )
    return _Budget(memory_bytes=memory_bytes, reserve_bytes=reserve_bytes, reason=reason)


def _start(request: FitRequest, config: Mapping[str, object]) -> int:
    """The value that the field has by itself."""
    if request.field not in config:
        numbers = [name for name, value in config.items() if _is_number(value)]
        if not numbers:
            raise MemprofError(
                f"{request.subject.label} has no parameter '{request.field}', nor another that is a number: name a"
                " function with such a parameter"
            )
        raise unknown_name(f"number to vary in {request.subject.label}", request.field, numbers)
    value = config[request.field]
    if not _is_number(value):
        raise MemprofError(
            f"{request.field} of {request.subject.label} is {value!r}, no whole number; vary another field"
        )
    assert isinstance(value, int)
    if value < 1:
        raise MemprofError(f"{request.field} starts at {value}; give it a value above zero with --set")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _step(request: FitRequest) -> tuple[int, str]:
    """What the value must be a multiple of, and why where that is not 1."""
    if request.multiple_of is not None:
        return request.multiple_of, f"as asked for with --multiple-of {request.multiple_of}"
    if not request.subject.is_built_in:
        # Only a compile would tell what a user's function takes; what accumulation asks of its batch is known.
        step = apply_techniques(TrainConfig(), parse_techniques(request.techniques)).num_minibatches
        return step, f"{request.techniques} splits the batch into {step} equal parts" if step > 1 else ""
    refusal = ""
    for step in range(1, _LARGEST_STEP + 1):
        try:
            for value in (step, 2 * step, 3 * step):
                request.subject.with_override(request.field, value).check([request.techniques])
        except MemprofError as error:
            refusal = refusal or str(error).rstrip(".")
        else:
            return step, f"others are not valid: {refusal}" if refusal else ""
    raise MemprofError(f"no {request.field} can be varied: {refusal}")


def _check_params_fit(report: Report, budget: _Budget) -> None:
    """Parameters and optimizer state do not shrink with a batch: where they alone are too much, nothing will fit."""
    params = report.categories[Category.PARAMS]
    if params > budget.memory_bytes - budget.reserve_bytes:
        raise NothingFitsError(f"the parameters alone do not fit: {_arithmetic(report, budget)}")


def _nothing_fits(field: str, value: int, reports: dict[int, Report], budget: _Budget) -> NothingFitsError:
    return NothingFitsError(f"not even {field}={value} fits: {_arithmetic(reports[value], budget)}")


def _arithmetic(report: Report, budget: _Budget) -> str:
    params, optimizer = report.categories[Category.PARAMS], report.categories[Category.OPTIMIZER_STATE]
    others = report.footprint_bytes - params - optimizer
    return (
        f"params {params:,} + optimizer state {optimizer:,} + everything else {others:,} ="
        f" {report.footprint_bytes:,} bytes, but memory {budget.memory_bytes:,} - reserve {budget.reserve_bytes:,} ="
        f" {budget.memory_bytes - budget.reserve_bytes:,}"
    )


def _command(request: FitRequest, value: int) -> str:
    """The command line that profiles the answer."""
    arguments = request.subject.with_override(request.field, value).arguments
    words = ["memprof", "run", arguments["workload"] if request.subject.is_built_in else arguments["reference"]]
    for option, text in (
        ("--preset", arguments.get("preset")),
        ("--target", request.target),
        ("-t", request.techniques),
    ):
        words += [option, text] if text else []
    for override in arguments["overrides"]:
        words += ["--set", override]
    for path, role in arguments.get("roles", {}).items():
        words += ["--role", f"{path}={role}"]
    own = arguments.get("arguments", [])
    return shlex.join([*words, *(["--", *own] if own else [])])
