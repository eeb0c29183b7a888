"""`memprof fit`: the batch, or another number, with which a step fits; or the techniques that a batch takes to fit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memprof.errors import MemprofError
from memprof.profiler_cli import options
from memprof.profiler_cli.capture_names import file_name
from memprof.profiler_cli.console import stages
from memprof.profiler_cli.endings import is_report
from memprof.profiler_cli.option_table import AUTO
from memprof.profiler_cli.render import Rendering, print_document, rendering

if TYPE_CHECKING:
    from memprof.analysis.records.capture import Capture
    from memprof.profiler_cli.kept_captures import KeptCaptures
    from memprof.sources.jax.targets.resolve import AskedTarget
    from memprof.studies.fit.techniques import TechniquesRequest
    from memprof.studies.fit.value import FitRequest


_FIRST_MESH = "8"  # where `--vary devices` begins, unless --mesh says otherwise

_Memory = Annotated[
    str | None,
    typer.Option(
        "--memory", help="Memory of the device, for example 40GiB; by default the target's.", metavar="AMOUNT"
    ),
]
_Vary = Annotated[
    str | None,
    typer.Option(
        "--vary",
        help="The integer field to vary; by default batch_size. `devices` finds the smallest mesh on which the "
        "step fits.",
        metavar="FIELD",
    ),
]
_Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        help="Find the largest value for each value of another field, FIELD=1024,4096. Without values: from a "
        "quarter to four times its current value.",
        metavar="FIELD",
    ),
]
_Reserve = Annotated[
    str | None,
    typer.Option(
        "--reserve",
        hidden=True,
        help="Memory of the pool to keep free: 2GiB, or 6% of the card; by default 0.",
        metavar="AMOUNT",
    ),
]
_MultipleOf = Annotated[
    int | None,
    typer.Option(
        "--multiple-of", hidden=True, min=1, max=options.MOST, help="Only try multiples of this.", metavar="N"
    ),
]
_Technique = Annotated[
    list[str],
    typer.Option(
        "-t",
        "--technique",
        "--techniques",
        metavar="NAME",
        autocompletion=options.complete_techniques,
        help="Techniques to apply, joined with +: bf16+donate; auto finds techniques that make the given "
        "batch fit. Also --techniques.",
    ),
]
_Steps = Annotated[
    int | None,
    typer.Option(
        "--steps",
        min=1,
        max=options.MOST,
        help="With auto: run the cheapest fitting combinations and rank them by time.",
    ),
]
_Output = Annotated[Path | None, typer.Option("-o", "--output", help="Folder for the captures.", metavar="FOLDER")]


@options.with_groups
def fit(
    workload: options.Workload,
    arguments: options.ScriptArguments = [],  # noqa: B006 - Typer copies it
    *,
    memory: _Memory = None,
    vary: _Vary = None,
    against: _Against = None,
    reserve: _Reserve = None,
    multiple_of: _MultipleOf = None,
    step: options.StepOptions,
    technique: _Technique = [],  # noqa: B006
    compiling: options.CompileOptions,
    engine: options.Engine = options.EngineName.XLA,
    framework: options.HiddenFramework = options.FrameworkName.JAX,
    pool: options.Pool = None,
    steps: _Steps = None,
    jobs: options.Jobs = None,
    output: _Output = None,
    save: options.Save = True,
    source: options.Source = True,
    shown: options.ShownOptions,
) -> None:
    """Find the largest batch that fits, or make one fit.

    Every footprint is compiled. The search needs few compiles, because it predicts how the footprint grows.

        memprof fit transformer --target a100-40gb -t bf16+donate
        memprof fit train.py:step_spec --memory 40GiB --vary seq_len
        memprof fit transformer -t fsdp --set batch_size=64 --vary devices
        memprof fit decoder --phase decode -t bf16-params --against context_len=2048,8192

    With `--techniques auto`, memprof keeps the batch and finds the cheapest techniques that make it fit.

        memprof fit transformer --target l4 --techniques auto --set batch_size=16
    """
    from memprof.profiler_cli.kept_captures import kept_captures
    from memprof.sources.jax.targets.resolve import resolve_asked
    from memprof.sources.torch.step_spec import SHARDS
    from memprof.studies.engine import POOL, engine_target
    from memprof.studies.export import as_inference
    from memprof.studies.fit.budget import MemoryRequest
    from memprof.studies.fit.results import DEVICES
    from memprof.studies.fit.techniques import TechniquesRequest
    from memprof.studies.fit.value import FitRequest, check_fit
    from memprof.studies.torch_step import torch_target

    if is_report(output):
        raise MemprofError(f"-o of fit is a folder for captures, and {output} is the name of a report: use > {output}")
    show = rendering(shown.format, width=shown.width)
    show.check_shows_documents("a fit")
    techniques = "+".join(technique)
    _check_together(techniques)
    subject, settings, mesh = step.subject(workload, arguments), compiling.settings(), compiling.mesh
    if vary == DEVICES and mesh is None and subject.is_built_in:
        mesh = f"{SHARDS}={_FIRST_MESH}" if framework is options.FrameworkName.TORCH else _FIRST_MESH
    judged_by = options.chosen_pool(pool)
    target: AskedTarget
    if framework is options.FrameworkName.TORCH:
        target, judged_by = torch_target(compiling.target, mesh), POOL
    elif engine is options.EngineName.TENSORRT:
        subject, target, judged_by = as_inference(subject), engine_target(compiling.target), POOL
    else:
        target = resolve_asked(
            compiling.target,
            runs=bool(steps),
            mesh=mesh,
            hosts=compiling.hosts,
            chips=compiling.topology,
            slices=compiling.slices,
        )
    wanted = MemoryRequest(target=target, memory=memory, reserve=reserve, pool=judged_by)
    kept = partial(
        kept_captures,
        output,
        file_name("fit", subject.label, step.preset or "", techniques),
        save=save,
        with_source=source,
    )
    if techniques == AUTO:
        cheapest = TechniquesRequest(subject=subject, memory=wanted, num_steps=steps or 0, settings=settings)
        cheapest.check()
        with kept(is_of_it=cheapest.is_of_it) as captures:
            _print_cheapest_techniques(cheapest, num_jobs=jobs, kept=captures, show=show)
        return
    request = FitRequest(
        subject=subject,
        techniques=techniques,
        field=vary or "batch_size",
        memory=wanted,
        multiple_of=multiple_of,
        settings=settings,
        engine=engine.value,
        framework=framework.value,
    )
    if against is not None:
        _print_curve(request, against, kept=kept, show=show)
        return
    check_fit(request)
    with kept(is_of_it=request.is_of_it) as captures:
        _print_largest_value(request, kept=captures, show=show)


def _check_together(techniques: str) -> None:
    """Raises `MemprofError` for auto among other techniques, since it chooses among all."""
    if techniques != AUTO and AUTO in techniques.split("+"):
        raise MemprofError("auto chooses among all techniques: give only auto, or name the techniques without it")


def _print_largest_value(request: FitRequest, *, kept: KeptCaptures, show: Rendering) -> None:
    """Find it and print what was tried.

    Raises:
        NothingFitsError: not even the smallest value does.
        MemprofError, WorkloadError: see `fit`.
    """
    from memprof.reports.json.answers import fit_json
    from memprof.reports.views.fit import fit_document
    from memprof.studies.fit.value import fit

    def keep(capture: Capture, value: int | None) -> None:
        kept.keep(capture, detail="" if value is None else f"{request.field}={value}")

    with stages(f"fit {request.subject.label}") as stage:
        result = fit(request, progress=stage, keep=keep)
    print_document(fit_document(result), fit_json(result), show)
    kept.say_where()


def _print_curve(
    request: FitRequest, against: str, *, kept: Callable[..., AbstractContextManager[KeptCaptures]], show: Rendering
) -> None:
    """Find the largest value for each value of another field, and print the table.

    Args:
        against: the field, with values or without.
    """
    from memprof.reports.json.fit_curve import fit_curve_json
    from memprof.reports.views.fit import fit_curve_document
    from memprof.studies.fit.curve import check_curve, curve_request, fit_curve

    other, values = _field_and_values(against)
    check_curve(request, other, values)

    def is_of_it(capture: Capture) -> bool:
        value = capture.config.get(other)
        return isinstance(value, int) and curve_request(request, other, value).is_of_it(capture)

    with kept(is_of_it=is_of_it) as captures:

        def keep(capture: Capture, at: int, value: int | None) -> None:
            captures.keep(capture, detail=f"{other}={at}" + ("" if value is None else f",{request.field}={value}"))

        with stages(f"fit {request.subject.label}") as stage:
            curve = fit_curve(request, against=other, values=values, progress=stage, keep=keep)
        print_document(fit_curve_document(curve), fit_curve_json(curve), show)
        captures.say_where()


def _field_and_values(text: str) -> tuple[str, tuple[int, ...]]:
    """A field, and the values after its equals sign.

    Raises:
        MemprofError: a value is no number above zero.
    """
    field, equals, values = text.partition("=")
    parts = [part.strip() for part in values.split(",")] if equals else []
    if not field or any(not (part.isascii() and part.isdigit() and int(part)) for part in parts):
        raise MemprofError(
            f"--against is {text!r}, but a field was expected, or one with numbers: context_len=1024,4096"
        )
    return field, tuple(map(int, parts))


def _print_cheapest_techniques(
    request: TechniquesRequest, *, num_jobs: int | None, kept: KeptCaptures, show: Rendering
) -> None:
    """Find them and print the table of what was tried.

    Raises:
        NothingFitsError: no combination does; what was tried is printed before.
        MemprofError, WorkloadError: see `fit_techniques`.
    """
    from memprof.reports.json.answers import fit_techniques_json
    from memprof.reports.views.fit import techniques_document
    from memprof.sources.jax.processes.launch import num_at_a_time
    from memprof.studies.fit.search import NothingFitsError
    from memprof.studies.fit.techniques import Work, fit_techniques

    with stages(f"fit {request.subject.label}") as stage:
        work = Work(
            num_jobs=num_jobs or num_at_a_time(request.settings, request.memory.target),
            progress=stage,
            keep=kept.keep,
        )
        result = fit_techniques(request, work)
    print_document(techniques_document(result), fit_techniques_json(result), show)
    kept.say_where()
    if result.answer is None:
        smallest = result.smallest
        raise NothingFitsError(
            f"no combination fits: the smallest compiled one, {smallest.name}, takes {smallest.footprint_bytes:,} bytes"
            f" of {result.budget_bytes:,}; {smallest.verdict.sentence if smallest.verdict else ''}"
        )
