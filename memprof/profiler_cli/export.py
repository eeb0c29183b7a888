"""`memprof export`: a step as a model that other engines run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from memprof.errors import WorkloadError
from memprof.files import IfTaken, check_writable, write_whole
from memprof.profiler_cli import options
from memprof.profiler_cli.capture_names import file_name
from memprof.profiler_cli.console import say, stages
from memprof.reports.units import format_bytes


class ModelFormat(StrEnum):
    """What a step can be exported as."""

    ONNX = "onnx"


@options.with_groups
def export(
    workload: options.Workload,
    arguments: options.ScriptArguments = [],  # noqa: B006 - Typer copies it
    *,
    step: options.StepOptions,
    technique: options.Techniques = [],  # noqa: B006
    format: Annotated[  # noqa: A002 - the name of the option
        ModelFormat, typer.Option("--format", help="The format of the model.", rich_help_panel=options.OUTPUT_OPTIONS)
    ] = ModelFormat.ONNX,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="The file to write; large weights go to a file beside it.",
            metavar="FILE",
            rich_help_panel=options.OUTPUT_OPTIONS,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file.", rich_help_panel=options.OUTPUT_OPTIONS)
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Run the model on the CPU, and compare its results with JAX's.",
            rich_help_panel=options.OUTPUT_OPTIONS,
        ),
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Write an inference step as an ONNX model.

    Parameters become the model's weights, with random values; cache and tokens are its inputs. Needs the extra onnx.

        memprof export decoder --phase decode --preset tiny -o decoder.onnx
        memprof export transformer -t bf16-params --verify
    """
    from memprof.sources.jax.processes.launch import exported_in_child
    from memprof.studies.export import export_task

    subject, techniques = step.subject(workload, arguments), "+".join(technique)
    path = output or Path(f"{file_name(subject.label, step.preset or '', techniques)}.onnx")
    check_writable(path, overwrite=force)
    task = export_task(subject, techniques, file_name=path.name, verifies=verify)
    with stages(f"export {subject.label}") as stage, exported_in_child(task, progress=stage) as (_, found, files):
        _write(files, path.parent, if_taken=IfTaken.REPLACE if force else IfTaken.REFUSE)
    written = found.model
    say(
        f"model written to {path}: {written.num_nodes:,} nodes, {written.num_inputs} inputs,"
        f" {written.num_outputs} outputs, weights and constants {format_bytes(written.weight_bytes)}"
    )
    if found.agreement is None:
        return
    close = found.agreement
    sentence = (
        f"the largest difference between {close.engine} and JAX is {close.difference:.1e} of a result's largest value"
        f" (tolerance {close.tolerance:.0e})"
    )
    if not close.is_equal:
        raise WorkloadError(sentence)
    say(sentence)


def _write(files: Sequence[Path], folder: Path, *, if_taken: IfTaken) -> None:
    """Write the files of a model: the model itself, which is the first, when its weights are there.

    Raises:
        MemprofError: one exists, or cannot be written; then there is no model.
    """
    for file in files:
        check_writable(folder / file.name, overwrite=if_taken is IfTaken.REPLACE)
    for file in reversed(files):
        with file.open("rb") as source:
            write_whole(folder / file.name, partial(shutil.copyfileobj, source), what="the model", if_taken=if_taken)
