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
        why="is for XLA, and TensorRT builds an engine",
    ),
    Row(
        where=_is_torch,
        options=(
            *("role", "phase", "mesh", "hosts", "topology", "slices", "timeout", "complete", "cache", "cluster"),
            *("steps", "pool", "jobs", "advise", "verify", "require_effect"),
        ),
        why="is for steps of JAX, which are compiled; a step of PyTorch is traced",
    ),
    Row(
        commands=("compare",),
        where=_of_captures,
        options=(*_COMPILED, "framework", "engine", "steps", "jobs", "save", "source"),
        why="is for rows that are compiled; captures are compared as they are",
    ),
    Row(
        commands=("compare",),
        where=lambda values: _of_captures(values) and not is_report(values["output"]),
        options=("output",),
        why="names a folder, which is for rows that are compiled; captures are compared as they are",
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
        why="is for a step that is compiled; a capture is checked as it is",
    ),
    Row(
        commands=("advise",),
        where=lambda values: values["what"] is None or is_capture(values["what"]),
        options=tuple(each for each in _COMPILED if each not in ("timeout", "complete", "cache", "cluster")),
        why="is for a step that is compiled; a capture is looked at as it is",
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
        why="is for --update, which it lets replace a file that is no baseline",
    ),
    Row(
        commands=("fit",),
        where=_is_auto,
        options=("vary", "against", "multiple_of"),
        why="looks for the largest value that fits with given techniques, and auto for the techniques with which given"
        " values fit",
    ),
    Row(
        commands=("fit",),
        where=_is_auto,
        options=("mesh", "hosts", "topology", "slices"),
        why="is for several devices, and auto chooses techniques for one",
    ),
    Row(
        commands=("fit",),
        where=_is_auto,
        options=("engine",),
        why="builds engines, and auto chooses among techniques that XLA compiles",
    ),
    Row(
        commands=("fit",),
        where=_is_auto,
        options=("framework",),
        why="traces steps of PyTorch, and auto chooses among techniques that XLA compiles",
    ),
    Row(
        commands=("fit",),
        where=lambda values: not _is_auto(values),
        options=("steps", "jobs"),
        why="is for --techniques auto",
    ),
    Row(
        commands=("check",),
        where=lambda values: not (values["technique"] or _of_capture(values) or _is_of_user(values)),
        options=("require_effect",),
        why="looks for techniques in the program, and none is named with -t",
    ),
    Row(
        commands=("compare", "fit"),
        where=lambda values: not (values["save"] or is_report(values["output"])),
        options=("output",),
        why="is for captures that are written, and --no-save writes none",
    ),
    Row(
        commands=("run",),
        where=lambda values: not (values["save"] or is_report(values["output"])),
        options=("output", "force"),
        why="is for a capture that is written, and --no-save writes none",
    ),
    Row(
        where=lambda values: "output" in values and values["output"] is None,
        options=("force",),
        why="overwrites the file given with -o, and there is none",
    ),
    Row(
        commands=("run", "compare"),
        where=lambda values: bool(values["steps"]),
        options=("complete",),
        why="is for a step that does not run; with --steps it is compiled to the end",
    ),
    Row(
        commands=("run", "compare", "check", "fit", "trace"),
        where=lambda values: not _is_planned(values),
        options=("cache",),
        why="is for steps that are compiled to XLA's plan, and this one is compiled to the end",
    ),
    Row(
        where=lambda values: bool(values.get("steps")),
        options=("cluster",),
        why="is for compiles; steps run on the device that is here",
    ),
    Row(
        where=lambda values: not values.get("mesh"),
        options=("hosts",),
        why="says on how many hosts the devices of a mesh are: give --mesh too",
    ),
    Row(
        commands=("run",),
        where=lambda values: not values["advise"],
        options=("verify",),
        why="puts advice to the test: give --advise too",
    ),
    Row(
        commands=("show",),
        where=lambda values: _format(values) == XPROF,
        options=("diff", "why", "force", "source", "width", "pool", *_VIEWS),
        why="is for reports; --format xprof writes the compiled program, whole, under a name of its own",
    ),
    Row(
        commands=("show",),
        where=lambda values: values["why"] is not None,
        options=("diff", "by", "depth", "full", "verbose", "source", "editor", "pool"),
        why="is for the report, and --why is about buffers of a name",
    ),
    Row(
        commands=("show",),
        where=lambda values: values["diff"] is not None,
        options=("pool",),
        why="is for the verdict on one step, and --diff is about two",
    ),
    Row(
        commands=("run", "show"),
        where=lambda values: _is_data(values) and _format(values) != JSON,
        options=("pool",),
        why="is for the verdict, which {format} does not have",
    ),
    Row(
        commands=("compare",),
        where=lambda values: values["by"] is not None,
        options=("pool",),
        why="is for the verdicts, which --by {by} does not show",
    ),
    Row(
        commands=("explain",),
        where=lambda values: not values["program"],
        options=("pool",),
        why="is for the verdict on a program: give it with --program",
    ),
    Row(
        where=lambda values: _format(values) != TERMINAL,
        options=("full", "verbose"),
        why="is for --format terminal; {format} always has everything",
    ),
    Row(
        commands=("show", "compare"),
        where=lambda values: values["by"] is not None or values.get("diff") is not None,
        options=("full", "verbose"),
        why="is for the report, not for one view of it",
    ),
    Row(
        commands=("run", "show"),
        where=lambda values: _is_first_screen(values),
        options=("depth", "top"),
        why="is for lists that the first screen leaves out: give --full or a view of `memprof show --by` too",
    ),
    Row(
        where=_is_data,
        options=_VIEWS,
        why="is for formats that people read; {format} always has everything, in one order",
    ),
    Row(
        where=_is_picture,
        options=("by", "depth", "top"),
        why="is for tables; {format} shows the main charts alone",
    ),
    Row(
        where=lambda values: _format(values) not in (TERMINAL, XPROF),
        options=("width",),
        why="is for --format terminal; {format} has no columns of characters",
    ),
    Row(
        where=lambda values: _format(values) != "html" and not values.get("save", False),
        options=("source",),
        why="is for captures that are written, and for --format html, the one that shows the text around source lines",
    ),
    Row(
        where=lambda values: _format(values) != "html",
        options=("editor",),
        why="is for --format html, the one whose source lines are links",
    ),
    Row(
        commands=("run",),
        where=lambda values: _is_picture(values) or (_is_data(values) and _format(values) != JSON),
        options=("advise",),
        why="needs a format with room for sentences; {format} has none",
    ),
    Row(
        commands=("show",),
        where=lambda values: _by(values) not in (None, "module"),
        options=("depth",),
        why="is for the tree of modules, which --by {by} does not show",
    ),
    Row(
        commands=("compare",),
        where=lambda values: _by(values) != "module" and (_by(values) is not None or _format(values) != "html"),
        options=("depth",),
        why="is for the tree of modules: give --by module too",
    ),
    Row(
        commands=("show",),
        where=lambda values: _by(values) == "category",
        options=("top",),
        why="cuts long lists, and --by category is always whole",
    ),
    Row(
        commands=("watch",),
        where=lambda values: values["keep"] == 0 and not is_report(values["output"]),
        options=("output",),
        why="is the folder of captures, and --keep 0 writes none",
    ),
    Row(
        where=_has_no_phases,
        options=("phase",),
        why="is for a workload with phases, such as decoder",
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
