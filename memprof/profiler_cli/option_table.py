"""Which options go with which subject, format and other options: what would be ignored is refused, in every command.

An option that is given and then not used is a mistake that stays unseen: a gate that compiled nothing, a report that
was not cut to the width asked for. `ROWS` is the table. Each command is a `Verb` (verb.py), which looks it up before
the work starts. What is not in the table is honoured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from memprof.profiler_cli.endings import JSON, TERMINAL, format_for, is_capture, is_report

AUTO = "auto"  # the techniques that `fit` is to find
XPROF = "xprof"  # not a format of reports: it is made of the compiled program, and is a folder

_COMPILED = (
    *(
        "arguments",
        "preset",
        "overrides",
        "technique",
        "role",
        "phase",
        "target",
        "mesh",
        "hosts",
        "topology",
        "slices",
    ),
    *("timeout", "complete", "cache", "cluster"),
)
_VIEWS = ("by", "depth", "top", "sort")

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Options that have no effect in a command where a condition holds.

    Attributes:
        commands: in which they are refused; empty: in all that have such options.
        where: from the values of all parameters of a command to whether the condition holds.
        options: names of parameters.
        why: the end of the message that begins with the option.
    """

    commands: tuple[str, ...] = ()
    where: Callable[[Values], bool]
    options: tuple[str, ...]
    why: str


def _of_capture(values: Values) -> bool:
    return is_capture(values["what"])


def _of_captures(values: Values) -> bool:
    return all(map(is_capture, values["what"]))


def _is_auto(values: Values) -> bool:
    return "+".join(values["technique"]) == AUTO


def _format(values: Values) -> str:
    name, output = values.get("format"), values.get("output")
    if name == XPROF or not (is_report(output) or "capture" in values):  # of all others, a file that is no report
        return str(name or TERMINAL)
    return format_for(name, output)


def _is_first_screen(values: Values) -> bool:
    return _format(values) == TERMINAL and not any(
        values.get(name) for name in ("full", "verbose", "by", "diff", "why")
    )


def _is_data(values: Values) -> bool:
    """Whether the format gives facts and no document: such a format is always whole."""
    name = _format(values)
    if name in (TERMINAL, JSON):
        return name == JSON
    from memprof.reports.format import formats

    return any(each.name == name and each.lower is None for each in formats())


def _is_picture(values: Values) -> bool:
    name = _format(values)
    if name in (TERMINAL, JSON):
        return False
    from memprof.reports.format import formats

    return any(each.name == name and each.is_picture for each in formats())


def _is_of_user(values: Values) -> bool:
    from memprof.workloads.user.reference import is_reference

    return is_reference(values["what"])


def _has_no_phases(values: Values) -> bool:
    """Whether what is compiled is a built-in workload whose step is one and the same."""
    from memprof.workloads import registry
    from memprof.workloads.user.reference import is_reference

    what = values.get("workload", values.get("what"))
    name = what[0] if isinstance(what, list) and what else what
    found = (
        each for each in registry.workloads() if each.name == name and "phase" in each.config_type.__dataclass_fields__
    )
    return isinstance(name, str) and not is_reference(name) and next(found, None) is None


def _is_planned(values: Values) -> bool:
    """Whether a command compiles to the plan alone."""
    if "log_folder" in values:  # `trace` runs the step wherever the target's device is
        return values["target"] not in (None, "cpu", "local") or values["mesh"] is not None
    runs = bool(values.get("steps")) and not _is_auto(values)  # of those that fit, only the cheapest
    return not (runs or values["complete"])


def _by(values: Values) -> str | None:
    by = values.get("by")
    return None if by is None else by.value


def _is_torch(values: Values) -> bool:
    asked = values.get("framework")
    frameworks = [] if asked is None else [asked] if isinstance(asked, str) else asked
    return bool(frameworks) and all(each == "torch" for each in frameworks)


def _is_tensorrt(values: Values) -> bool:
    asked = values.get("engine")
    engines = [] if asked is None else [asked] if isinstance(asked, str) else asked
    return bool(engines) and all(each == "tensorrt" for each in engines)


ROWS = (
    Row(
        where=_is_tensorrt,
        options=(
            *("role", "mesh", "hosts", "topology", "slices", "complete", "cache", "cluster", "framework", "steps"),
            *("pool", "jobs", "source", "advise", "verify"),
        ),
        why="applies to XLA, but TensorRT builds an engine",
    ),
    Row(
        where=_is_torch,
        options=(
            *("role", "phase", "hosts", "topology", "slices", "timeout", "complete", "cache", "cluster"),
            *("steps", "pool", "jobs", "advise", "verify"),
        ),
        why="applies to compiled JAX steps; a PyTorch step is traced",
    ),
    Row(
        commands=("compare",),
        where=_of_captures,
        options=(*_COMPILED, "framework", "engine", "steps", "jobs", "save", "source"),
        why="applies to rows that are compiled; captures are compared unchanged",
    ),
    Row(
        commands=("compare",),
        where=lambda values: _of_captures(values) and not is_report(values["output"]),
        options=("output",),
        why="names a folder, which applies to rows that are compiled; captures are compared unchanged",
    ),
    Row(
        commands=("compare", "watch"),
        where=lambda values: values["output"] is not None and not is_report(values["output"]),
        options=("force",),
        why="overwrites a report; a folder of captures is only added to",
    ),
    Row(
        commands=("check",),
        where=_of_capture,
        options=(*_COMPILED, "framework"),
        why="applies to a step that is compiled; a capture is checked unchanged",
    ),
    Row(
        commands=("advise",),
        where=lambda values: values["what"] is None or is_capture(values["what"]),
        options=tuple(each for each in _COMPILED if each not in ("timeout", "complete", "cache", "cluster")),
        why="applies to a step that is compiled; a capture is analyzed unchanged",
    ),
    Row(
        commands=("check",),
        where=lambda values: values["update"],
        options=("maximum", "fits", "pool", "fail_on", "require_effect", "format", "top", "width"),
        why="checks, and --update writes a baseline without checking",
    ),
    Row(
        commands=("check",),
        where=lambda values: not values["update"],
        options=("force",),
        why="applies to --update, to replace a file that is not a baseline",
    ),
    Row(
        commands=("fit",),
        where=_is_auto,
        options=("vary", "against", "multiple_of"),
        why="finds the largest value that fits with given techniques, but auto finds techniques with which given "
            "values fit",
    ),
    Row(
        commands=("fit",),
        where=_is_auto,
        options=("mesh", "hosts", "topology", "slices"),
        why="applies to several devices, but auto chooses techniques for one",
    ),
    Row(
        commands=("fit",),
        where=_is_auto,
        options=("engine",),
        why="builds engines, but auto chooses among techniques that XLA compiles",
    ),
    Row(
        commands=("fit",),
        where=_is_auto,
        options=("framework",),
        why="traces PyTorch steps, but auto chooses among techniques that XLA compiles",
    ),
    Row(
        commands=("fit",),
        where=lambda values: not _is_auto(values),
        options=("steps", "jobs"),
        why="applies to --techniques auto",
    ),
    Row(
        commands=("check",),
        where=lambda values: not (values["technique"] or _of_capture(values) or _is_of_user(values)),
        options=("require_effect",),
        why="looks for techniques in the program, but none is named with -t",
    ),
    Row(
        commands=("compare", "fit"),
        where=lambda values: not (values["save"] or is_report(values["output"])),
        options=("output",),
        why="applies to written captures, but --no-save writes none",
    ),
    Row(
        commands=("run",),
        where=lambda values: not (values["save"] or is_report(values["output"])),
        options=("output", "force"),
        why="applies to a written capture, but --no-save writes none",
    ),
    Row(
        where=lambda values: "output" in values and values["output"] is None,
        options=("force",),
        why="overwrites the file given with -o, but none is given",
    ),
    Row(
        commands=("run", "compare"),
        where=lambda values: bool(values["steps"]),
        options=("complete",),
        why="applies to a step that does not run; with --steps it is compiled completely",
    ),
    Row(
        commands=("run", "compare", "check", "fit", "trace"),
        where=lambda values: not _is_planned(values),
        options=("cache",),
        why="applies to steps that are compiled to XLA's plan, but this one is compiled completely",
    ),
    Row(
        where=lambda values: bool(values.get("steps")),
        options=("cluster",),
        why="applies to compiles; steps run on the local device",
    ),
    Row(
        where=lambda values: not values.get("mesh"),
        options=("hosts",),
        why="sets the number of hosts of a mesh: give --mesh, too",
    ),
    Row(
        commands=("run",),
        where=lambda values: not values["advise"],
        options=("verify",),
        why="compiles the advised changes: give --advise, too",
    ),
    Row(
        commands=("show",),
        where=lambda values: _format(values) == XPROF,
        options=("diff", "why", "force", "source", "width", "pool", *_VIEWS),
        why="applies to reports; --format xprof writes the whole compiled program under a fixed name",
    ),
    Row(
        commands=("show",),
        where=lambda values: values["why"] is not None,
        options=("diff", "by", "depth", "full", "verbose", "source", "editor", "pool"),
        why="applies to the report, but --why explains single buffers",
    ),
    Row(
        commands=("show",),
        where=lambda values: values["diff"] is not None,
        options=("pool",),
        why="applies to the verdict on one step, but --diff compares two",
    ),
    Row(
        commands=("run", "show"),
        where=lambda values: _is_data(values) and _format(values) != JSON,
        options=("pool",),
        why="applies to the verdict, which {format} does not have",
    ),
    Row(
        commands=("compare",),
        where=lambda values: values["by"] is not None,
        options=("pool",),
        why="applies to the verdicts, which --by {by} does not show",
    ),
    Row(
        commands=("explain",),
        where=lambda values: not values["program"],
        options=("pool",),
        why="applies to the verdict on a program: give it with --program",
    ),
    Row(
        where=lambda values: _format(values) != TERMINAL,
        options=("full", "verbose"),
        why="applies to --format terminal; {format} is always complete",
    ),
    Row(
        commands=("show", "compare"),
        where=lambda values: values["by"] is not None or values.get("diff") is not None,
        options=("full", "verbose"),
        why="applies to the whole report, not to one view",
    ),
    Row(
        commands=("run", "show"),
        where=lambda values: _is_first_screen(values),
        options=("depth", "top"),
        why="applies to lists that the first screen leaves out: give --full or a view of `memprof show --by`, too",
    ),
    Row(
        where=_is_data,
        options=_VIEWS,
        why="applies to human-readable formats; {format} is always complete, in a fixed order",
    ),
    Row(
        where=_is_picture,
        options=("by", "depth", "top"),
        why="applies to tables; {format} shows only the main charts",
    ),
    Row(
        where=lambda values: _format(values) not in (TERMINAL, XPROF),
        options=("width",),
        why="applies to --format terminal; {format} has no text columns",
    ),
    Row(
        where=lambda values: _format(values) != "html" and not values.get("save", False),
        options=("source",),
        why="applies to written captures, and to --format html, which shows the text around source lines",
    ),
    Row(
        where=lambda values: _format(values) != "html",
        options=("editor",),
        why="applies to --format html, whose source lines are links",
    ),
    Row(
        commands=("run",),
        where=lambda values: _is_picture(values) or (_is_data(values) and _format(values) != JSON),
        options=("advise",),
        why="needs a format that has sentences; {format} has none",
    ),
    Row(
        commands=("show",),
        where=lambda values: _by(values) not in (None, "module"),
        options=("depth",),
        why="applies to the module tree, which --by {by} does not show",
    ),
    Row(
        commands=("compare",),
        where=lambda values: _by(values) != "module" and (_by(values) is not None or _format(values) != "html"),
        options=("depth",),
        why="applies to the module tree: give --by module, too",
    ),
    Row(
        commands=("show",),
        where=lambda values: _by(values) == "category",
        options=("top",),
        why="shortens long lists, but --by category is always complete",
    ),
    Row(
        commands=("watch",),
        where=lambda values: values["keep"] == 0 and not is_report(values["output"]),
        options=("output",),
        why="is the folder of captures, but --keep 0 writes none",
    ),
    Row(
        where=_has_no_phases,
        options=("phase",),
        why="applies to a workload with phases, such as decoder",
    ),
)  # fmt: skip


def refusal(command: str, values: Values, given: Mapping[str, str]) -> str | None:
    """The sentence for the first option that would have no effect; None where all that was given is used.

    Args:
        values: of all parameters, by their names.
        given: the parameters that stand on the command line, and how they are written there.
    """
    for row in ROWS:
        if row.commands and command not in row.commands:
            continue
        refused = [name for name in row.options if name in given]
        if refused and row.where(values):
            why = row.why.format(format=_format(values), by=_by(values))
            return f"{given[refused[0]]} {why}; leave it out"
    return None
