"""`memprof run`: compile one configuration, write its capture, print where its memory goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memprof.profiler_cli import options
from memprof.profiler_cli.capture_names import free_path, stem
from memprof.profiler_cli.console import say, stages
from memprof.profiler_cli.render import print_report, rendering


def run(
    workload: options.Workload,
    preset: options.Preset = None,
    overrides: options.Overrides = [],  # noqa: B006 - Typer copies it
    technique: options.Techniques = [],  # noqa: B006
    target: options.Target = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write the capture.", metavar="FILE")
    ] = None,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Whether to write the capture.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file given with -o.")] = False,
    format: options.Format = "terminal",  # noqa: A002 - the option's name
    depth: options.Depth = None,
    top: options.Top = None,
    width: options.Width = None,
) -> None:
    """Compile one training step and say where every byte of its device memory goes.

    Nothing is allocated and no device is needed: the step is compiled on shapes alone.

        memprof run transformer --target h100-80gb -t bf16+donate
    """
    from memprof.analysis.pipeline import analyze
    from memprof.capture.capture_file import check_writable, write_capture
    from memprof.capture.launch import compile_in_child
    from memprof.capture.targets.resolve import deviceless_target
    from memprof.workloads.build import plan

    show = rendering(format, depth=depth, top=top, width=width)
    if target is not None:
        deviceless_target(target)
    arguments = {"workload": workload, "preset": preset, "overrides": overrides, "techniques": technique}
    plan(workload=workload, preset=preset, overrides=overrides, techniques=technique)  # mistakes come before the work
    label = f"{workload} {'+'.join(technique)}".rstrip()
    if save:
        check_writable(output or Path("capture.memprof"), overwrite=force or output is None)

    with stages(label) as stage:
        builder = "memprof.workloads.build:build_step"
        capture = compile_in_child(builder, arguments, target=target, progress=stage)
        if save:
            path = output or free_path(Path(f"{stem(capture)}.memprof"))
            write_capture(capture, path, overwrite=force)
        stage("analysing")
        report = analyze(capture)
    print_report(report, show)
    if save:
        say(f"capture written to {path}; show it again with: memprof show {path}")
