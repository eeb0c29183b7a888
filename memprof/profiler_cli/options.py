"""The options that several commands share, each defined once, and the completion of names by a shell."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from memprof.analysis.records.pool import PoolSettings

LEAST_WIDTH, MOST_WIDTH = 40, 1000
MOST_JOBS = 256
MOST = 1_000_000  # of whatever is counted: steps, rows, levels
MOST_SECONDS = 10_000_000.0  # 115 days, which a timer can still wait


def complete_workloads(incomplete: str) -> list[str]:
    from memprof.workloads.registry import workloads

    return _beginning(incomplete, (workload.name for workload in workloads()))


def complete_techniques(incomplete: str) -> list[str]:
    """Complete the last of several techniques joined with `+`."""
    from memprof.workloads.registry import technique_names

    before, plus, last = incomplete.rpartition("+")
    return [f"{before}{plus}{name}" for name in _beginning(last, technique_names())]


def complete_targets(incomplete: str) -> list[str]:
    from memprof.capture.targets.gpu import gpus

    return _beginning(incomplete, [*gpus(), "local", "cpu"])


def complete_formats(incomplete: str) -> list[str]:
    from memprof.reports.format import formats

    return _beginning(incomplete, (each.name for each in formats()))


def chosen_pool(text: str | None) -> PoolSettings | None:
    """The settings of JAX's pool that `--pool` asks for; None if it was not given.

    Raises:
        MemprofError: it is no share.
    """
    from memprof.capture.pool_settings import parse_pool

    return None if text is None else parse_pool(text)


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


Workload = Annotated[
    str,
    typer.Argument(
        help="What to profile: a built-in workload (see `memprof list workloads`), or your own step: FILE.py:NAME or"
        " package.module:NAME, where NAME is a memprof.StepSpec, a memprof.TrainSpec, or a function that returns one.",
        autocompletion=complete_workloads,
        metavar="WORKLOAD",
    ),
]
ScriptArguments = Annotated[
    list[str], typer.Argument(help="After --: arguments that your own code finds in sys.argv.", metavar="-- ARGS")
]
Roles = Annotated[
    list[str],
    typer.Option(
        "--role", help="What an argument of your step is for, by its path: ema=other_state; repeatable.",
        metavar="PATH=ROLE",
    ),
]  # fmt: skip
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", min=1, max=MOST_SECONDS, help="Give a compile up after so many seconds.", metavar="SECONDS"
    ),
]
Complete = Annotated[
    bool, typer.Option("--complete", help="Compile to the end, not to XLA's plan alone, and compare the two totals.")
]
Cache = Annotated[
    bool,
    typer.Option(
        "--cache/--no-cache",
        help="Whether plans of earlier compiles are taken from the cache (see `memprof cache info`).",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", help="Lower steps here, and have a running Dask cluster compile them: tcp://HOST:8786.",
        metavar="ADDRESS",
    ),
]  # fmt: skip
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
        "--target", help="Device to compile for: h100-80gb, l4, ..., a file (*.pbtxt), local or cpu.",
        metavar="NAME", autocompletion=complete_targets,
    ),
]  # fmt: skip
Mesh = Annotated[
    str | None,
    typer.Option(
        "--mesh", help="Several of the target: the axes of a mesh, fsdp=4,tp=2, or a number of devices, 8.",
        metavar="AXES",
    ),
]  # fmt: skip
Hosts = Annotated[
    int | None, typer.Option("--hosts", min=1, max=MOST, help="On how many hosts the mesh's devices are.")
]
Pool = Annotated[
    str | None,
    typer.Option(
        "--pool",
        help="JAX's share of the card's memory to judge by, 0.9 or 90%; by default as JAX would take here: as the"
        " environment says, else 75%.",
        metavar="SHARE",
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        "--steps", min=1, max=MOST, help="Also run this many steps on the device that is here, and measure them."
    ),
]
CaptureFile = Annotated[Path, typer.Argument(help="A capture that `memprof run` wrote (*.memprof).", metavar="CAPTURE")]
Format = Annotated[
    str | None,
    typer.Option(
        "--format", help="How to write the report, by default as the ending of -o says: terminal, html, json, ...",
        metavar="NAME", autocompletion=complete_formats,
    ),
]  # fmt: skip
Full = Annotated[bool, typer.Option("--full", help="The whole report, and not its first screen.")]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Say nothing on stderr but errors: no progress, no names of files.")
]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Also the tools and the configuration.")]
Depth = Annotated[int | None, typer.Option("--depth", min=1, max=MOST, help="Levels of the module tree.")]
Top = Annotated[int | None, typer.Option("--top", min=1, max=MOST, help="Rows of the longest lists.")]
Width = Annotated[
    int | None,
    typer.Option("--width", min=LEAST_WIDTH, max=MOST_WIDTH, help="Columns to write for, instead of the terminal's."),
]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Where to write the report, instead of stdout: r.html, r.json, ...",
        metavar="FILE",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file given with -o.")]
Editor = Annotated[
    str | None,
    typer.Option(
        "--editor", help="What source lines of an HTML report link to: vscode://file{file}:{line} by default, or none.",
        metavar="LINK",
    ),
]  # fmt: skip
Source = Annotated[
    bool,
    typer.Option("--source/--no-source", help="Whether captures and HTML reports hold the text around source lines."),
]
