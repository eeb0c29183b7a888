"""`memprof fit`: the batch, or any other number, with which a step fits while the next one does not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memprof.analysis.capture import Capture
from memprof.profiler_cli import options
from memprof.profiler_cli.capture_names import file_name, free_path
from memprof.profiler_cli.console import say, stages
from memprof.profiler_cli.kept_captures import keep_in
from memprof.profiler_cli.render import print_document, rendering


def fit(
    workload: options.Workload,
    arguments: options.ScriptArguments = [],  # noqa: B006 - Typer copies it
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory", help="Memory of the device, 40GiB for example; by default the target's.", metavar="AMOUNT"
        ),
    ] = None,
    vary: Annotated[
        str, typer.Option("--vary", help="The field that is varied, a whole number.", metavar="FIELD")
    ] = "batch_size",
    reserve: Annotated[
        str | None,
        typer.Option("--reserve", help="What must stay free: 6%, 2GiB or 0; by default 6%.", metavar="AMOUNT"),
    ] = None,
    multiple_of: Annotated[
        int | None, typer.Option("--multiple-of", min=1, help="Only try multiples of this.", metavar="N")
    ] = None,
    preset: options.Preset = None,
    overrides: options.Overrides = [],  # noqa: B006
    technique: options.Techniques = [],  # noqa: B006
    role: options.Roles = [],  # noqa: B006
    target: options.Target = None,
    timeout: options.Timeout = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for the captures.", metavar="FOLDER")
    ] = None,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Whether to write the captures.")] = True,
    format: options.Format = "terminal",  # noqa: A002 - the option's name
    width: options.Width = None,
) -> None:
    """Find the batch with which a step fits while the next one does not.

    Footprints are measured by compiling, in few compiles: the search follows the way in which the footprint grows.

        memprof fit transformer --target a100-40gb -t bf16+donate
        memprof fit train.py:step_spec --memory 40GiB --vary seq_len
    """
    from memprof.reports.fit_json import fit_object
    from memprof.reports.views.fit import fit_document
    from memprof.workloads import fit as fitting
    from memprof.workloads.budget import MemoryRequest
    from memprof.workloads.subject import find_subject

    show = rendering(format, width=width)
    show.check_shows_documents("a fit")
    subject = find_subject(workload, preset=preset, overrides=overrides, roles=role, arguments=arguments)
    request = fitting.FitRequest(
        subject=subject,
        techniques="+".join(technique),
        field=vary,
        memory=MemoryRequest(target=target, memory=memory, reserve=reserve),
        multiple_of=multiple_of,
    )
    fitting.check_fit(request)
    folder = output or free_path(Path(file_name("fit", subject.label, preset or "", request.techniques)))

    def keep(capture: Capture, value: int | None) -> None:
        if save:
            keep_in(folder, capture, detail="" if value is None else f"{vary}={value}")

    with stages(f"fit {subject.label}") as stage:
        result = fitting.fit(request, progress=stage, keep=keep, timeout_seconds=timeout)
    print_document(fit_document(result), fit_object(result), show)
    if save:
        say(f"captures written to {folder}")
