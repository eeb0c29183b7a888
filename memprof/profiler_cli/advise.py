"""`memprof advise`: what could be done about the peak of a step, each saving compiled, or of a saved capture."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memprof.errors import Interrupted, MemprofError
from memprof.profiler_cli import options
from memprof.profiler_cli.capture_names import capture_or_latest
from memprof.profiler_cli.console import row_stages, say, stages
from memprof.profiler_cli.endings import is_capture
from memprof.profiler_cli.render import print_document, rendering

if TYPE_CHECKING:
    from collections.abc import Callable

    from memprof.analysis.records.pool import PoolSettings
    from memprof.analysis.records.report import Report
    from memprof.sources.jax.targets.resolve import AskedTarget
    from memprof.sources.jax.xla.portable_program import CompileSettings
    from memprof.studies.advice.advice import Advice
    from memprof.studies.subject import Subject

_What = Annotated[
    str | None,
    typer.Argument(
        metavar="STEP|CAPTURE",
        help="A built-in workload, a training script FILE.py, FILE.py:NAME or package.module:NAME, or a saved capture;"
        " by default the latest capture in this folder.",
        autocompletion=options.complete_workloads,
    ),
]


@options.with_groups
def advise(
    what: _What = None,
    arguments: options.ScriptArguments = [],  # noqa: B006 - Typer copies it
    *,
    step: options.StepOptions,
    technique: options.Techniques = [],  # noqa: B006
    device: options.TargetOptions,
    pool: options.Pool = None,
    output: options.ReportFile = None,
    force: options.HiddenForce = False,
    shown: options.ShownOptions,
) -> None:
    """List changes that would lower the peak of a step.

    Each change comes with its code.

    If a step is given, memprof compiles the changes that it can make itself (donation, checkpoints, options of XLA,
    techniques), so their savings are exact. "up to" marks an upper bound. For a capture, every saving is an upper bound
    until this command has compiled the changes of its step. The files of the step do not change.

        memprof advise train.py:step_spec --target a100-40gb

        memprof advise transformer-gpt2-h100-80gb.memprof
    """
    from memprof.analysis.pipeline import analyze
    from memprof.reports.json.answers import advice_list_json
    from memprof.reports.views.advice import advice_document
    from memprof.sources.capture_file import read_capture
    from memprof.sources.jax.xla.portable_program import TO_THE_PLAN
    from memprof.studies.advice.advise import without_saving
    from memprof.studies.advice.known import known_advice, known_changes

    show = rendering(shown.format, output=output, force=force, width=shown.width)
    show.check_shows_documents("advice")
    judged_by = options.chosen_pool(pool)
    of_step = what is not None and _names_step(what)
    if what is not None and of_step:
        so_far: list[tuple[Report, tuple[Advice, ...]]] = []
        try:
            report, advice = compiled_advice(
                step.subject(what, arguments),
                "+".join(technique),
                device.resolved(),
                TO_THE_PLAN,
                judged_by,
                interrupted=lambda *found: so_far.append(found),
            )
        except Interrupted:
            for report, advice in so_far if output is None else ():
                print_document(advice_document(report, advice, of_step=True), advice_list_json(report, advice), show)
                say("some changes were not compiled; the same command begins where this one ended")
            raise
    else:
        report = analyze(read_capture(capture_or_latest(None if what is None else Path(what))), pool=judged_by)
        if report.framework != "jax":
            raise MemprofError(f"{report.label} is a trace of PyTorch, and advice names changes of JAX code")
        advice = known_advice(report)
    idle = without_saving(report, known_changes(report))
    document = advice_document(report, advice, of_step=of_step, without_saving=idle)
    print_document(document, advice_list_json(report, advice), show)


def _names_step(what: str) -> bool:
    """Whether an argument names a step, and no capture."""
    from memprof.workloads.registry import workloads
    from memprof.workloads.user.reference import is_reference

    return not is_capture(what) and (is_reference(what) or what in {each.name for each in workloads()})


def compiled_advice(
    subject: Subject,
    techniques: str,
    target: AskedTarget,
    settings: CompileSettings,
    pool: PoolSettings | None,
    *,
    interrupted: Callable[[Report, tuple[Advice, ...]], None] = lambda report, advice: None,
) -> tuple[Report, tuple[Advice, ...]]:
    """The advice for a step, compiled from this process: what the user's code prints goes to stderr."""
    from memprof.sources.jax.hints import as_workload_error
    from memprof.sources.jax.own_attributes import own
    from memprof.sources.jax.targets.choose import spare_devices
    from memprof.sources.jax.targets.mesh import target_of_step
    from memprof.sources.jax.tracing.step import StepSpec
    from memprof.studies.advice.compiled import advise_step
    from memprof.workloads.train_step import Trainer

    def with_technique(label: str) -> StepSpec:
        row = "+".join(filter(None, (techniques, label)))
        return replace(subject.task(row, target=target).recipe.build(target), workload=spec.workload)

    task = subject.task(techniques, target=target)
    with contextlib.redirect_stdout(sys.stderr), stages(f"{subject.label} {techniques}".rstrip()) as stage:
        stage("importing")
        spare_devices(task.target)
        spec = as_workload_error("could not be built", lambda: task.recipe.build(task.target))
        chosen = target_of_step(spec, task.target)
        takes_techniques = subject.is_built_in or isinstance(own(spec.fn, "__self__"), Trainer)
        found: tuple[Report, tuple[Advice, ...]] = as_workload_error(
            f"could not be compiled for {chosen.name}",
            lambda: advise_step(
                spec,
                chosen,
                progress=stage,
                rows=row_stages,
                settings=settings,
                pool=pool,
                with_technique=with_technique if takes_techniques else None,
                is_built_in=subject.is_built_in,
                warn=say,
                interrupted=interrupted,
            ),
        )
        return found
