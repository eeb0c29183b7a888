"""`memprof run`: compile one configuration, write its capture, print where its memory goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memprof.profiler_cli import options
from memprof.profiler_cli.capture_names import free_path, stem
from memprof.profiler_cli.console import say, stages
from memprof.profiler_cli.render import end_if_out_of_memory, print_report, rendering


def run(
    workload: options.Workload,
    arguments: options.ScriptArguments = [],  # noqa: B006 - Typer copies it
    preset: options.Preset = None,
    overrides: options.Overrides = [],  # noqa: B006
    technique: options.Techniques = [],  # noqa: B006
    role: options.Roles = [],  # noqa: B006
    target: options.Target = None,
    timeout: options.Timeout = None,
    steps: options.Steps = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write the capture.", metavar="FILE")
    ] = None,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Whether to write the capture.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file given with -o.")] = False,
    format: options.Format = "terminal",  # noqa: A002 - the option's name
    depth: options.Depth = None,
    top: options.Top = None,
    width: options.Width = None,
    source: options.Source = True,
) -> None:
    """Compile one training step and say where every byte of its device memory goes.

    Nothing is allocated and no device is needed: the step is compiled on shapes alone. With --steps it also runs, on
    the device that is here, and what is measured stands beside what was predicted.

        memprof run transformer --target h100-80gb -t bf16+donate
        memprof run train.py:step_spec --set batch_size=16 -- --my-own-flag

        memprof run transformer --preset tiny --steps 20
    """
    from memprof.analysis.pipeline import analyze
    from memprof.capture.capture_file import check_writable, write_capture
    from memprof.capture.launch import compile_in_child
    from memprof.capture.targets.resolve import check_can_run, deviceless_target
    from memprof.workloads.subject import find_subject

    show = rendering(format, depth=depth, top=top, width=width, source=source)
    if target is not None:
        deviceless_target(target)
    if steps:
        check_can_run(target)
    subject = find_subject(workload, preset=preset, overrides=overrides, roles=role, arguments=arguments)
    subject.check(technique)  # mistakes come before the work
    label = f"{subject.label} {'+'.join(technique)}".rstrip()
    if save:
        check_writable(output or Path("capture.memprof"), overwrite=force or output is None)

    with stages(label) as stage:
        capture = compile_in_child(
            subject.builder,
            subject.builder_arguments(technique),
            target=target,
            num_steps=steps or 0,
            progress=stage,
            timeout_seconds=timeout,
        )
        if save:
            path = output or free_path(Path(f"{stem(capture)}.memprof"))
            write_capture(capture, path, overwrite=force)
        stage("analysing")
        report = analyze(capture)
    print_report(report, show)
    if save:
        say(f"capture written to {path}; show it again with: memprof show {path}")
    end_if_out_of_memory(report)
