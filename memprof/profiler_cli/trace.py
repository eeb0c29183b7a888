"""`memprof trace`: a log directory for TensorBoard's profile plugin and XProf, of a step that runs or was compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memprof.files import as_argument
from memprof.profiler_cli import options
from memprof.profiler_cli.capture_names import stem
from memprof.profiler_cli.console import say, stages
from memprof.profiler_cli.render import end_if_out_of_memory, is_told_by_another, print_report, rendering
from memprof.profiler_cli.viewer import check_can_view, view

_DEFAULT_STEPS = 10


_LogFolder = Annotated[
    Path, typer.Option("--logdir", help="The log directory; a session is added to it.", metavar="FOLDER")
]
_Steps = Annotated[
    int | None,
    typer.Option("--steps", min=1, max=options.MOST, help=f"Steps to trace, by default {_DEFAULT_STEPS}."),
]
_ViewIt = Annotated[
    bool, typer.Option("--view", help="Then open the log directory in TensorBoard, on this machine only.")
]


def trace(
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
    log_folder: _LogFolder = Path("logs"),
    steps: _Steps = None,
    view_it: _ViewIt = False,
    format: options.Format = None,  # noqa: A002 - the option's name
    depth: options.Depth = None,
    top: options.Top = None,
    width: options.Width = None,
    quiet: options.Quiet = False,
) -> None:
    """Record steps for TensorBoard's profile plugin and XProf, and say which operations take the time and the memory.

    With a GPU's name for a target nothing runs: the log directory then holds the compiled program alone, for the
    memory viewer and the graph viewer.

        memprof trace transformer --preset tiny --logdir logs --view

        memprof trace transformer --target h100-80gb --logdir logs
    """
    from memprof.analysis.pipeline import analyze
    from memprof.capture.processes.launch import compile_in_child, trace_in_child
    from memprof.capture.running.xprof_log import check_log_folder, write_compiled_session, write_traced_session
    from memprof.capture.targets.resolve import resolve_asked
    from memprof.capture.xla.portable_program import CompileSettings
    from memprof.studies.subject import find_subject

    show = rendering(format, depth=depth, top=top, width=width)
    aim = resolve_asked(target, runs=bool(steps), mesh=mesh, hosts=hosts)
    runs = aim is None or not aim.is_deviceless
    subject = find_subject(workload, preset=preset, overrides=overrides, roles=role, arguments=arguments)
    task = subject.task(
        "+".join(technique),
        target=aim,
        num_steps=(steps or _DEFAULT_STEPS) if runs else 0,
        settings=CompileSettings(use_cache=cache, timeout_seconds=timeout),
    )
    if view_it:
        check_can_view()
    check_log_folder(log_folder)
    with stages(f"{subject.label} {'+'.join(technique)}".rstrip()) as stage:
        if runs:
            capture, session = trace_in_child(
                task,
                write_session=lambda capture, traced: write_traced_session(
                    capture, traced, log_folder, name=stem(capture)
                ),
                progress=stage,
            )
            if is_told_by_another(capture):
                return
        else:
            capture = compile_in_child(task, progress=stage)
            session = write_compiled_session(capture, log_folder, name=stem(capture))
        stage("analysing")
        report = analyze(capture)
    print_report(report, show)
    end_if_out_of_memory(report)
    say(f"session written to {session}; open it with: tensorboard --host 127.0.0.1 --logdir {as_argument(log_folder)}")
    if view_it:
        view(log_folder)
