"""The options that several commands share, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memprof.profiler_cli.complete import complete_formats, complete_targets, complete_techniques, complete_workloads

Workload = Annotated[
    str,
    typer.Argument(
        help="What to profile: a built-in workload (see `memprof list workloads`).", autocompletion=complete_workloads
    ),
]
Preset = Annotated[str | None, typer.Option("--preset", help="Size of the workload: tiny, gpt2, ...", metavar="NAME")]
Overrides = Annotated[
    list[str],
    typer.Option("--set", help="Change a field of the workload's configuration; repeatable.", metavar="FIELD=VALUE"),
]
Techniques = Annotated[
    list[str],
    typer.Option(
        "-t", "--technique", help="What to apply, joined with +: bf16+donate.", metavar="NAME",
        autocompletion=complete_techniques,
    ),
]  # fmt: skip
Rows = Annotated[
    list[str],
    typer.Option(
        "-t", "--technique", help="A row: techniques joined with +. Repeat it for more rows.", metavar="NAMES",
        autocompletion=complete_techniques,
    ),
]  # fmt: skip
Target = Annotated[
    str | None,
    typer.Option(
        "--target", help="Device to compile for: h100-80gb, l4, ..., a gpu_target_config.pbtxt, local or cpu.",
        metavar="NAME", autocompletion=complete_targets,
    ),
]  # fmt: skip
CaptureFile = Annotated[Path, typer.Argument(help="A capture that `memprof run` wrote (*.memprof).", metavar="CAPTURE")]
Format = Annotated[
    str, typer.Option("--format", help="How to write the report.", metavar="NAME", autocompletion=complete_formats)
]
Depth = Annotated[int | None, typer.Option("--depth", min=1, help="Levels of the module tree.")]
Top = Annotated[int | None, typer.Option("--top", min=1, help="Rows of the longest lists.")]
Width = Annotated[int | None, typer.Option("--width", min=40, help="Columns to write for, instead of the terminal's.")]
