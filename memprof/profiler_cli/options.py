"""The options that several commands share: three groups, single options, and the completion of names by a shell.

A command takes a group as one parameter, and `with_groups` gives it the group's options:

    @with_groups
    def run(workload: Workload, step: StepOptions, compiling: CompileOptions, shown: ShownOptions) -> None: ...

The help of a command lists the options that people ask for. An option that is seldom needed is hidden: it works on the
command line and as an environment variable (`MEMPROF_WIDTH`), and docs/configuration.md lists it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from memprof.analysis.records.pool import PoolSettings
    from memprof.sources.jax.targets.resolve import AskedTarget
    from memprof.sources.jax.xla.portable_program import CompileSettings
    from memprof.studies.subject import Subject

MIN_WIDTH, MAX_WIDTH = 40, 1000
MAX_JOBS = 256
MOST = 1_000_000  # of whatever is counted: steps, rows, levels
MAX_SECONDS = 10_000_000.0  # 115 days, which a timer can still wait
STEP_OPTIONS = "The step"
DEVICE_OPTIONS = "The device"
OUTPUT_OPTIONS = "The output"
GROUPS = (STEP_OPTIONS, DEVICE_OPTIONS, OUTPUT_OPTIONS)  # in the order of the help


def complete_workloads(incomplete: str) -> list[str]:
    from memprof.workloads.registry import workloads

    return _beginning(incomplete, (workload.name for workload in workloads()))


def complete_techniques(incomplete: str) -> list[str]:
    """Complete the last of several techniques joined with `+`."""
    from memprof.workloads.registry import technique_names

    before, plus, last = incomplete.rpartition("+")
    return [f"{before}{plus}{name}" for name in _beginning(last, technique_names())]


def complete_targets(incomplete: str) -> list[str]:
    from memprof.sources.jax.targets.resolve import catalogued

    return _beginning(incomplete, catalogued())


def complete_formats(incomplete: str) -> list[str]:
    from memprof.reports.format import formats

    return _beginning(incomplete, (each.name for each in formats()))


def chosen_pool(text: str | None) -> PoolSettings | None:
    """The settings of JAX's pool that `--pool` asks for; None if it was not given.

    Raises:
        MemprofError: it is no share.
    """
    from memprof.sources.pool_settings import parse_pool

    return None if text is None else parse_pool(text)


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


class FrameworkName(StrEnum):
    """The framework that a step is written in."""

    JAX = "jax"
    TORCH = "torch"


_FRAMEWORK_HELP = "The framework of the step."
Framework = Annotated[FrameworkName, typer.Option("--framework", help=_FRAMEWORK_HELP, rich_help_panel=STEP_OPTIONS)]
HiddenFramework = Annotated[FrameworkName, typer.Option("--framework", help=_FRAMEWORK_HELP, hidden=True)]
Frameworks = Annotated[
    list[FrameworkName],
    typer.Option("--framework", help="The framework of the rows, repeatable.", rich_help_panel=STEP_OPTIONS),
]


class EngineName(StrEnum):
    """What runs the program."""

    XLA = "xla"
    TENSORRT = "tensorrt"


Engine = Annotated[
    EngineName,
    typer.Option("--engine", hidden=True, help="The engine of an inference step; tensorrt needs the extra tensorrt."),
]
Engines = Annotated[
    list[EngineName],
    typer.Option("--engine", hidden=True, help="The engine of the rows, repeatable."),
]
Workload = Annotated[
    str,
    typer.Argument(
        help="A built-in workload (see `memprof list workloads`), or your own step: FILE.py:NAME or"
        " package.module:NAME, where NAME is a memprof.StepSpec, a memprof.TrainSpec, or a function that returns one;"
        " or a training script, FILE.py, which runs until it calls its step.",
        autocompletion=complete_workloads,
        metavar="WORKLOAD",
    ),
]
ScriptArguments = Annotated[
    list[str], typer.Argument(help="After --: arguments of your own code, in sys.argv.", metavar="-- ARGS")
]
CaptureFile = Annotated[
    Path | None,
    typer.Argument(
        help="A capture that `memprof run` wrote (*.memprof); by default the latest in this folder.",
        metavar="CAPTURE",
    ),
]
Techniques = Annotated[
    list[str],
    typer.Option(
        "-t", "--technique", help="Techniques to apply, joined with +: bf16+donate.", metavar="NAMES",
        autocompletion=complete_techniques, rich_help_panel=STEP_OPTIONS,
    ),
]  # fmt: skip
Rows = Annotated[
    list[str],
    typer.Option(
        "-t", "--technique", help="A row: techniques joined with +; repeat it for more rows.", metavar="NAMES",
        autocompletion=complete_techniques, rich_help_panel=STEP_OPTIONS,
    ),
]  # fmt: skip
Steps = Annotated[
    int | None,
    typer.Option(
        "--steps", min=1, max=MOST, help="Also run N steps on the local device, and measure them.",
        rich_help_panel=DEVICE_OPTIONS,
    ),
]  # fmt: skip
_POOL_HELP = "JAX's share of the card's memory: 0.9 or 90%; by default from the environment, else 75%."
Pool = Annotated[str | None, typer.Option("--pool", help=_POOL_HELP, metavar="SHARE", rich_help_panel=DEVICE_OPTIONS)]
HiddenPool = Annotated[str | None, typer.Option("--pool", help=_POOL_HELP, metavar="SHARE", hidden=True)]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", min=1, max=MAX_JOBS, hidden=True, envvar="MEMPROF_JOBS",
        help="The number of parallel compiles; by default as cores and memory allow.",
    ),
]  # fmt: skip
Save = Annotated[
    bool, typer.Option("--save/--no-save", hidden=True, envvar="MEMPROF_SAVE", help="Whether to write captures.")
]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", help="Write the report to a file instead of stdout: r.html, r.json, ...", metavar="FILE",
        rich_help_panel=OUTPUT_OPTIONS,
    ),
]  # fmt: skip
_FORCE_HELP = "Overwrite the file given with -o."
Force = Annotated[bool, typer.Option("--force", help=_FORCE_HELP, rich_help_panel=OUTPUT_OPTIONS)]
HiddenForce = Annotated[bool, typer.Option("--force", help=_FORCE_HELP, hidden=True)]
_VERBOSE_HELP = "Show the whole report, with the tools and the configuration."
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help=_VERBOSE_HELP, rich_help_panel=OUTPUT_OPTIONS)]
HiddenVerbose = Annotated[bool, typer.Option("-v", "--verbose", help=_VERBOSE_HELP, hidden=True)]
Full = Annotated[bool, typer.Option("--full", hidden=True, help="The former name of --verbose.")]
Depth = Annotated[
    int | None,
    typer.Option("--depth", min=1, max=MOST, help="Levels of the module tree.", rich_help_panel=OUTPUT_OPTIONS),
]
HiddenDepth = Annotated[
    int | None, typer.Option("--depth", min=1, max=MOST, hidden=True, help="Levels of the module tree.")
]
Top = Annotated[
    int | None,
    typer.Option("--top", min=1, max=MOST, help="Rows of the longest lists.", rich_help_panel=OUTPUT_OPTIONS),
]
HiddenTop = Annotated[
    int | None, typer.Option("--top", min=1, max=MOST, hidden=True, help="Rows of the longest lists.")
]
Editor = Annotated[
    str | None,
    typer.Option(
        "--editor", hidden=True, envvar="MEMPROF_EDITOR", metavar="LINK",
        help="The link of a source line in an HTML report: vscode://file{file}:{line} by default, or none.",
    ),
]  # fmt: skip
Source = Annotated[
    bool,
    typer.Option(
        "--source/--no-source", hidden=True, envvar="MEMPROF_SOURCE",
        help="Whether captures and HTML reports hold the text around source lines.",
    ),
]  # fmt: skip
Roles = Annotated[
    list[str],
    typer.Option(
        "--role", help="The role of an argument of your step, by its path: ema=other_state; repeatable.",
        metavar="PATH=ROLE", rich_help_panel=STEP_OPTIONS,
    ),
]  # fmt: skip
Target = Annotated[
    str | None,
    typer.Option(
        "--target", help="Device to compile for: h100-80gb, v5e, ..., a file (*.pbtxt), local or cpu.",
        metavar="NAME", autocompletion=complete_targets, rich_help_panel=DEVICE_OPTIONS,
    ),
]  # fmt: skip
Mesh = Annotated[
    str | None,
    typer.Option(
        "--mesh", help="Several devices: the axes of a mesh, fsdp=4,tp=2, or a number, 8.", metavar="AXES",
        rich_help_panel=DEVICE_OPTIONS,
    ),
]  # fmt: skip
Format = Annotated[
    str | None,
    typer.Option(
        "--format", help="The format of the report, by default from the ending of -o: terminal, html, json, ...",
        metavar="NAME", autocompletion=complete_formats, rich_help_panel=OUTPUT_OPTIONS,
    ),
]  # fmt: skip
Width = Annotated[
    int | None,
    typer.Option(
        "--width", min=MIN_WIDTH, max=MAX_WIDTH, hidden=True, envvar="MEMPROF_WIDTH",
        help="Columns to write for, instead of the terminal's.",
    ),
]  # fmt: skip
Quiet = Annotated[
    bool,
    typer.Option("-q", "--quiet", help="Print only errors on stderr, no progress.", rich_help_panel=OUTPUT_OPTIONS),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """How the step is made."""

    preset: Annotated[
        str | None,
        typer.Option(
            "--preset", help="Size of the workload: tiny, gpt2, ...", metavar="NAME", rich_help_panel=STEP_OPTIONS
        ),
    ] = None
    overrides: Annotated[
        list[str],
        typer.Option(
            "--set", help="Change a field of the workload's configuration; repeatable.", metavar="FIELD=VALUE",
            rich_help_panel=STEP_OPTIONS,
        ),
    ] = field(default_factory=list)  # fmt: skip
    role: Roles = field(default_factory=list)
    phase: Annotated[
        str | None,
        typer.Option(
            "--phase", hidden=True, metavar="NAME",
            help="The phase of a workload: inference, or of decoder prefill, decode or chunked-prefill.",
        ),
    ] = None  # fmt: skip

    def subject(self, name: str, arguments: list[str]) -> Subject:
        """The workload or step of a name.

        Raises:
            MemprofError: see `find_subject`.
        """
        from memprof.studies.subject import find_subject

        overrides = [*self.overrides, *([f"phase={self.phase}"] if self.phase is not None else [])]
        return find_subject(name, preset=self.preset, overrides=overrides, roles=self.role, arguments=arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """The device or devices that a step is compiled for."""

    target: Target = None
    mesh: Mesh = None
    hosts: Annotated[
        int | None, typer.Option("--hosts", min=1, max=MOST, hidden=True, help="The number of hosts of the mesh.")
    ] = None
    topology: Annotated[
        str | None,
        typer.Option("--topology", hidden=True, metavar="CHIPS", help="The chips of a TPU slice: 2x4, 2x2x4."),
    ] = None
    slices: Annotated[
        int | None, typer.Option("--slices", min=1, max=MOST, hidden=True, help="The number of TPU slices of the mesh.")
    ] = None

    def resolved(self, *, runs: bool = False) -> AskedTarget:
        """The target and mesh that were asked for.

        Raises:
            MemprofError: see `resolve_asked`.
        """
        from memprof.sources.jax.targets.resolve import resolve_asked

        return resolve_asked(
            self.target, runs=runs, mesh=self.mesh, hosts=self.hosts, chips=self.topology, slices=self.slices
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions(TargetOptions):
    """The device that a step is compiled for, and how the compile is done."""

    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", min=1, max=MAX_SECONDS, hidden=True, envvar="MEMPROF_TIMEOUT", metavar="SECONDS",
            help="Abort a compile after this time.",
        ),
    ] = None  # fmt: skip
    cache: Annotated[
        bool,
        typer.Option(
            "--cache/--no-cache", hidden=True, envvar="MEMPROF_CACHE",
            help="Whether plans of earlier compiles are reused (see `memprof cache info`).",
        ),
    ] = True  # fmt: skip
    complete: Annotated[
        bool,
        typer.Option(
            "--complete", hidden=True, envvar="MEMPROF_COMPLETE",
            help="Compile completely, not only to XLA's plan, and compare the two totals.",
        ),
    ] = False  # fmt: skip
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", hidden=True, envvar="MEMPROF_CLUSTER", metavar="ADDRESS",
            help="Lower steps locally, and compile them on a running Dask cluster: tcp://HOST:8786.",
        ),
    ] = None  # fmt: skip

    def settings(self) -> CompileSettings:
        from memprof.sources.jax.xla.portable_program import CompileSettings

        return CompileSettings(
            complete=self.complete, use_cache=self.cache, timeout_seconds=self.timeout, cluster=self.cluster
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownOptions:
    """How the result is shown."""

    format: Format = None
    width: Width = None
    quiet: Quiet = False


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of its groups as parameters of its own, for Typer to read."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: each.annotation for name, each in signature.parameters.items() if is_dataclass(each.annotation)
    }

    @functools.wraps(command)
    def with_options(**values: Any) -> None:
        made = {
            name: group(**{option.name: values.pop(option.name) for option in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **made)

    parameters: list[inspect.Parameter] = []
    for name, each in signature.parameters.items():
        parameters += (
            _options_of(groups[name]) if name in groups else [each.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        )
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_options


def _options_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default if option.default_factory is MISSING else option.default_factory(),
            annotation=hints[option.name],
        )
        for option in fields(group)
    ]
