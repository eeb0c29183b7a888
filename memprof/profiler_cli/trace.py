"""`memprof trace`: a log directory for TensorBoard's profile plugin and XProf, of a step that runs or was compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memprof.files import as_argument
from memprof.profiler_cli import options
from memprof.profiler_cli.capture_names import stem
from memprof.profiler_cli.console import say, stages
from memprof.profiler_cli.render import end_if_out_of_memory, print_report, rendering, reported_by_process_zero
from memprof.profiler_cli.viewer import check_can_view, view

_DEFAULT_STEPS = 10


_LogFolder = Annotated[
    Path, typer.Option("--logdir", help="The log directory; a session is added to it.", metavar="FOLDER")
]
_Steps = Annotated[
    int | None,
    typer.Option("--steps", min=1, max=options.MOST, help=f"Steps to trace, by default {_DEFAULT_STEPS}."),
]
_ViewIt = Annotated[bool, typer.Option("--view", help="Open the log directory in TensorBoard, on this machine only.")]


@options.with_groups
def trace(
    workload: options.Workload,
    arguments: options.ScriptArguments = [],  # noqa: B006 - Typer copies it
    *,
    step: options.StepOptions,
    technique: options.Techniques = [],  # noqa: B006
    compiling: options.CompileOptions,
    log_folder: _LogFolder = Path("logs"),
    steps: _Steps = None,
    view_it: _ViewIt = False,
    depth: options.HiddenDepth = None,
    top: options.HiddenTop = None,
    shown: options.ShownOptions,
) -> None:
    """Write a log directory for TensorBoard and XProf.

    The step runs on the device of this machine, and the report names the operations that take the most time and memory.
    If --target names an absent GPU, nothing runs: the log directory holds the compiled program for the memory viewer
    and the graph viewer.

        memprof trace transformer --preset tiny --logdir logs --view

        memprof trace transformer --target h100-80gb --logdir logs
    """
    from memprof.analysis.pipeline import analyze
    from memprof.sources.jax.processes.launch import compile_in_child, trace_in_child
    from memprof.sources.jax.running.xprof_log import check_log_folder, write_compiled_session, write_traced_session

    show = rendering(shown.format, depth=depth, top=top, width=shown.width)
    aim = compiling.resolved(runs=bool(steps))
    runs = aim is None or not aim.is_deviceless
    subject = step.subject(workload, arguments)
    task = subject.task(
        "+".join(technique),
        target=aim,
        num_steps=(steps or _DEFAULT_STEPS) if runs else 0,
        settings=compiling.settings(),
    )
    if view_it:
        check_can_view()
    check_log_folder(log_folder)
    with stages(f"{subject.label} {'+'.join(technique)}".rstrip()) as stage:
        if runs:
            fresh, session = trace_in_child(
                task,
                write_session=lambda capture, traced: write_traced_session(
                    capture, traced, log_folder, name=stem(capture)
                ),
                progress=stage,
            )
            if reported_by_process_zero(fresh.capture):
                return
        else:
            fresh = compile_in_child(task, progress=stage)
            session = write_compiled_session(fresh.capture, log_folder, name=stem(fresh.capture))
        stage("analysing")
        report = analyze(fresh.capture, fresh.decoded)
    print_report(report, show)
    end_if_out_of_memory(report)
    say(f"session written to {session}; open it with: tensorboard --host 127.0.0.1 --logdir {as_argument(log_folder)}")
    if view_it:
        view(log_folder)
