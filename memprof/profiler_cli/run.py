"""`memprof run`: compile one configuration, write its capture, print where its memory goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memprof.errors import MemprofError
from memprof.files import IfTaken, check_writable
from memprof.profiler_cli import options
from memprof.profiler_cli.capture_names import stem
from memprof.profiler_cli.console import row_stages, say, stages
from memprof.profiler_cli.endings import capture_or_report
from memprof.profiler_cli.render import end_if_out_of_memory, is_told_by_another, print_report, rendering

if TYPE_CHECKING:
    from memprof.analysis.records.capture import Capture, Target
    from memprof.analysis.records.report import Report
    from memprof.capture.xla.portable_program import CompileSettings
    from memprof.studies.advice.advice import Advice
    from memprof.studies.subject import Subject


_Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Where to write the capture (r.memprof), or instead of stdout the report (r.html, r.json, ...).",
        metavar="FILE",
    ),
]
_Save = Annotated[bool, typer.Option("--save/--no-save", help="Whether to write the capture.")]
_Force = Annotated[bool, typer.Option("--force", help="Overwrite the file given with -o.")]
_Advise = Annotated[
    bool, typer.Option("--advise", help="Also say what could be done about the peak, and what it would save.")
]
_Verify = Annotated[
    bool, typer.Option("--verify", help="With --advise: compile what memprof can apply, to see what it saves.")
]


def run(
    workload: options.Workload,
    arguments: options.ScriptArguments = [],  # noqa: B006 - Typer copies it
    preset: options.Preset = None,
    overrides: options.Overrides = [],  # noqa: B006
    technique: options.Techniques = [],  # noqa: B006
    role: options.Roles = [],  # noqa: B006
    target: options.Target = None,
    mesh: options.Mesh = None,
    hosts: options.Hosts = None,
    timeout: options.Timeout = None,
    cache: options.Cache = True,
    steps: options.Steps = None,
    complete: options.Complete = False,
    cluster: options.Cluster = None,
    pool: options.Pool = None,
    output: _Output = None,
    save: _Save = True,
    force: _Force = False,
    format: options.Format = None,  # noqa: A002 - the option's name
    advise: _Advise = False,
    verify: _Verify = False,
    full: options.Full = False,
    verbose: options.Verbose = False,
    depth: options.Depth = None,
    top: options.Top = None,
    width: options.Width = None,
    quiet: options.Quiet = False,
    source: options.Source = True,
    editor: options.Editor = None,
) -> None:
    """Compile one training step and say where every byte of its device memory goes.

    Nothing is allocated and no device is needed: the step is compiled on shapes alone. With --steps it also runs, on
    the device that is here, and what is measured stands beside what was predicted.

        memprof run transformer --target h100-80gb -t bf16+donate
        memprof run train.py:step_spec --set batch_size=16 -- --my-own-flag

        memprof run transformer --preset tiny --steps 20
    """
    from memprof.analysis.pipeline import analyze
    from memprof.capture.capture_file import without_source
    from memprof.capture.processes.launch import compile_in_child
    from memprof.capture.targets.resolve import resolve_asked
    from memprof.capture.xla.portable_program import CompileSettings
    from memprof.reports.options import editor_link
    from memprof.studies.subject import find_subject

    output, report_file = capture_or_report(output, otherwise="end it in .memprof")
    show = rendering(
        format,
        output=report_file,
        force=force,
        full=full,
        verbose=verbose,
        depth=depth,
        top=top,
        width=width,
        source=source,
        editor=editor_link(editor),
        with_advice=advise,
    )
    aim, techniques = resolve_asked(target, runs=bool(steps), mesh=mesh, hosts=hosts), "+".join(technique)
    judged_by = options.chosen_pool(pool)
    subject = find_subject(workload, preset=preset, overrides=overrides, roles=role, arguments=arguments)
    settings = CompileSettings(complete=complete, use_cache=cache, timeout_seconds=timeout, cluster=cluster)
    task = subject.task(techniques, target=aim, num_steps=steps or 0, settings=settings)
    if save:
        check_writable(output or Path("capture.memprof"), overwrite=force or output is None)

    with stages(f"{subject.label} {techniques}".rstrip()) as stage:
        capture = compile_in_child(task, progress=stage)
        if is_told_by_another(capture):
            return
        if not source:
            capture = without_source(capture)
        path, not_written = _written(capture, output, force=force) if save else (None, None)
        stage("analysing")
        report = analyze(capture, pool=judged_by)
    if verify and report.measured is not None and report.measured.num_processes > 1:
        raise MemprofError(
            f"--verify is for one process, and this is one of {report.measured.num_processes} of a job: leave it out"
        )
    if verify:
        verified = _verified(report, subject, techniques, aim, settings)
        show = replace(show, options=replace(show.options, advice=verified))
    print_report(report, show.of_capture(path))
    if not_written:  # the compile is not lost: its report stands above
        raise not_written
    if path:
        say(f"capture written to {path}")
    end_if_out_of_memory(report)


def _written(capture: Capture, output: Path | None, *, force: bool) -> tuple[Path | None, MemprofError | None]:
    """Write the capture, and say where it is, or why it cannot be written."""
    from memprof.capture.capture_file import write_capture

    if_taken = IfTaken.NUMBER if output is None else IfTaken.REPLACE if force else IfTaken.REFUSE
    try:
        return write_capture(capture, output or Path(f"{stem(capture)}.memprof"), if_taken=if_taken), None
    except MemprofError as error:
        return None, error


def _verified(
    report: Report, subject: Subject, techniques: str, target: Target | None, settings: CompileSettings
) -> tuple[Advice, ...]:
    """The advice for a report, with what it really saves."""
    from memprof.capture.processes.launch import num_at_a_time
    from memprof.studies.advice.advise import advise
    from memprof.studies.advice.verify import tasks_for, verify

    advice = advise(report)
    tasks, refusals = tasks_for(subject, techniques, advice, target=target, settings=settings)
    num_jobs = num_at_a_time(settings, target)
    with row_stages([task.label for task in tasks]) as progress:
        return verify(report, advice, tasks, refusals, num_jobs=num_jobs, progress=progress)
