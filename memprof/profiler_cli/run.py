"""`memprof run`: compile one configuration, write its capture, print where its memory goes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memprof.errors import MemprofError
from memprof.files import IfTaken, check_writable
from memprof.profiler_cli import options
from memprof.profiler_cli.capture_names import stem
from memprof.profiler_cli.console import say, stages
from memprof.profiler_cli.endings import capture_or_report
from memprof.profiler_cli.render import end_if_out_of_memory, print_report, rendering, reported_by_process_zero

if TYPE_CHECKING:
    from memprof.analysis.hlo.decoded import FreshCapture
    from memprof.analysis.records.capture import Capture
    from memprof.studies.subject import Subject

_Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Where to write the capture (r.memprof), or the report instead of stdout (r.html, r.json, ...).",
        metavar="FILE",
        rich_help_panel=options.OUTPUT_OPTIONS,
    ),
]
_Advise = Annotated[
    bool,
    typer.Option(
        "--advise", help="Also list changes that would lower the peak.", rich_help_panel=options.OUTPUT_OPTIONS
    ),
]
_Verify = Annotated[
    bool,
    typer.Option("--verify", hidden=True, help="Compile the changes, as `memprof advise` does."),
]


@options.with_groups
def run(
    workload: options.Workload,
    arguments: options.ScriptArguments = [],  # noqa: B006 - Typer copies it
    *,
    step: options.StepOptions,
    technique: options.Techniques = [],  # noqa: B006
    framework: options.Framework = options.FrameworkName.JAX,
    engine: options.Engine = options.EngineName.XLA,
    compiling: options.CompileOptions,
    steps: options.Steps = None,
    pool: options.Pool = None,
    output: _Output = None,
    save: options.Save = True,
    force: options.HiddenForce = False,
    advise: _Advise = False,
    verify: _Verify = False,
    full: options.Full = False,
    verbose: options.Verbose = False,
    depth: options.HiddenDepth = None,
    top: options.HiddenTop = None,
    source: options.Source = True,
    editor: options.Editor = None,
    shown: options.ShownOptions,
) -> None:
    """Compile a training step and account for its device memory.

    Nothing is allocated and no device is needed: the step is compiled from shapes alone. With --steps it also runs on
    the device of this machine, and the report shows measured beside predicted memory.

        memprof run transformer --target h100-80gb -t bf16+donate
        memprof run decoder --phase decode --preset llama-8b --set batch_size=16
        memprof run decoder --phase decode --engine tensorrt --target rtx-4090
        memprof run train.py:step_spec --set batch_size=16 -- --my-own-flag

        memprof run transformer --preset tiny --steps 20
    """
    from memprof.analysis.pipeline import analyze
    from memprof.profiler_cli.advise import compiled_advice
    from memprof.reports.options import editor_link
    from memprof.sources.capture_file import without_source
    from memprof.sources.jax.processes.launch import compile_in_child
    from memprof.studies.subject import advise_command

    output, report_file = capture_or_report(output, otherwise="end it in .memprof")
    show = rendering(
        shown.format,
        output=report_file,
        force=force,
        full=full or verbose,
        verbose=verbose,
        depth=depth,
        top=top,
        width=shown.width,
        source=source,
        editor=editor_link(editor),
        with_advice=advise,
    )
    techniques = "+".join(technique)
    judged_by = options.chosen_pool(pool)
    make: Callable[..., FreshCapture]
    if framework is options.FrameworkName.TORCH:
        from memprof.studies.torch_step import TorchTrace, torch_target

        target = torch_target(compiling.target, compiling.mesh)
        trace = TorchTrace(subject=step.subject(workload, arguments), techniques=techniques, target=target)
        trace.check()
        label, make = workload, trace.capture
    else:
        aim = None
        subject, settings = step.subject(workload, arguments), compiling.settings()
        if engine is options.EngineName.TENSORRT:
            make = _engine(subject, techniques, compiling)
        else:
            aim = compiling.resolved(runs=bool(steps))
            make = partial(
                compile_in_child, subject.task(techniques, target=aim, num_steps=steps or 0, settings=settings)
            )
            command = advise_command(subject, aim, techniques)
            show = replace(show, options=replace(show.options, advise_command=command))
        label = subject.label
    if save:
        check_writable(output or Path("capture.memprof"), overwrite=force or output is None)

    with stages(f"{label} {techniques}".rstrip()) as stage:
        fresh = make(progress=stage)
        capture = fresh.capture
        if reported_by_process_zero(capture):
            return
        if not source:
            capture = without_source(capture)
        path, not_written = _written(capture, output, force=force) if save else (None, None)
        stage("analysing")
        report = analyze(capture, fresh.decoded, pool=judged_by)
        del fresh  # the decoded program takes much memory
    if verify and report.measured is not None and report.measured.num_processes > 1:
        raise MemprofError(
            f"--verify applies to a single process, but this is one of {report.measured.num_processes} of a job: "
            "leave it out"
        )
    if verify and framework is options.FrameworkName.JAX and engine is options.EngineName.XLA:
        found = compiled_advice(subject, techniques, aim, settings, judged_by)[1]
        show = replace(show, options=replace(show.options, advice=found, of_step=True))
    print_report(report, show.of_capture(path))
    if not_written:  # the compile is not lost: its report stands above
        raise not_written
    if path:
        say(f"capture written to {path}")
    end_if_out_of_memory(report)


def _engine(subject: Subject, techniques: str, compiling: options.CompileOptions) -> Callable[..., FreshCapture]:
    """What builds the engine of a step."""
    from memprof.studies.engine import EngineBuild, engine_target

    build = EngineBuild(
        subject=subject,
        techniques=techniques,
        target=engine_target(compiling.target),
        timeout_seconds=compiling.timeout,
    )
    build.check()
    return build.capture


def _written(capture: Capture, output: Path | None, *, force: bool) -> tuple[Path | None, MemprofError | None]:
    """Write the capture. Returns its path, or why it cannot be written.

    Without a name from the user, the latest capture has the plain name, and an earlier one that differs is kept.
    """
    from memprof.sources.capture_file import is_same, read_capture, write_capture

    path, if_taken = output or Path(f"{stem(capture)}.memprof"), IfTaken.REPLACE if force else IfTaken.REFUSE
    if output is None:
        if_taken = IfTaken.MOVE
        with suppress(MemprofError):
            if is_same(read_capture(path), capture):
                if_taken = IfTaken.REPLACE
    try:
        return write_capture(capture, path, if_taken=if_taken), None
    except MemprofError as error:
        return None, error
