"""What every command does: it takes the project's defaults, refuses what it would ignore, and has a help in words."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping, Sequence
from copy import copy
from inspect import cleandoc
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from memprof.errors import MemprofError, unknown_name
from memprof.profiler_cli.console import be_quiet
from memprof.profiler_cli.option_table import refusal
from memprof.profiler_cli.options import GROUPS, FrameworkName
from memprof.profiler_cli.project import project_defaults

_LONGEST_VALUE = 4096  # the longest path; of much longer texts, Python makes no number
_OF_THE_USER = "arguments"  # what their own code finds in sys.argv is their business
_ALIKE = 0.8  # how similar two names are of which one is a misspelling, by difflib
_DEVICE_OPTIONS = ("--mesh", "--hosts", "--topology", "--slices")  # no field, in a command that lacks them
_OTHER_NAMES = {
    "diff": "`memprof show AFTER.memprof --diff BEFORE.memprof`",
    "profile": "`memprof run`",
    "report": "`memprof show`",
    "view": "`memprof show`",
    "stats": "`memprof show`",
    "help": "`memprof --help`",
}
_ARGUMENTS, _OPTIONS = "Arguments", "Options"


class Commands(TyperGroup):
    """All commands, with a help that says the values of options."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_values(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that was named.

        Raises:
            MemprofError: there is none of that name.
        """
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            if name.endswith(".py"):
                raise MemprofError(
                    f"{name} is a script: `memprof watch {shlex.join(args)}` runs it and accounts for all"
                    f" of its programs, `memprof run {shlex.quote(name)}` compiles only its first training step"
                )
            if name in _OTHER_NAMES:
                raise MemprofError(f"there is no command '{name}': use {_OTHER_NAMES[name]}")
            raise unknown_name("command", name, self.list_commands(ctx))
        return super().resolve_command(ctx, args)


class Verb(TyperCommand):
    """A command that refuses what it would ignore."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        shown = copy(self)
        shown.help = _in_paragraphs(self.help or "")
        super(Verb, shown).format_help_text(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List the arguments, then the options by their groups, `--help` last; hidden options have no lines."""
        sections: dict[str, list[tuple[str, str]]] = {_ARGUMENTS: [], _OPTIONS: [], **{name: [] for name in GROUPS}}
        last = GROUPS[-1] if any(getattr(param, "rich_help_panel", None) for param in self.params) else _OPTIONS
        for param in self.get_params(ctx):
            line = _with_one_long_name(param).get_help_record(ctx)
            if line is None:
                continue
            is_argument = param.param_type_name == "argument"
            title = _ARGUMENTS if is_argument else getattr(param, "rich_help_panel", None) or _OPTIONS
            sections[last if param.name == "help" else title].append(line)
        for title, lines in sections.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_values(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options as Typer does, with the defaults of the project.

        Raises:
            MemprofError: one is empty, endless, or there more than once; or the project's defaults are wrong.
        """
        try:
            found, _, order = self.make_parser(ctx).parse_args(args=list(args))
        except typer.TyperException as error:
            wrong: Any = error
            if hasattr(wrong, "possibilities"):
                raise self._unknown_option(wrong.option_name, args) from error
            wrong.ctx = ctx  # that of an option without its value does not say of which command
            raise
        for param in {each.name: each for each in order}.values():
            if param.name in found and param.name != _OF_THE_USER:
                _check(param, found[param.name], num_times=sum(each is param for each in order))
        names = {str(param.name) for param in self.params}
        defaults = project_defaults(str(self.name), found)
        ctx.default_map = {name: value for name, value in defaults.items() if name in names}
        return super().parse_args(ctx, args)

    def _unknown_option(self, given: str, args: list[str]) -> MemprofError:
        """The error for an option that the command lacks."""
        names = {name: param for param in self.params for name in param.opts if name.startswith("--")}
        close = difflib.get_close_matches(given, names, n=1, cutoff=_ALIKE)
        hint = f"did you mean {close[0]}?" if close else f"see `memprof {self.name} --help`"
        if not close and given.startswith("--") and given not in _DEVICE_OPTIONS and "--set" in names:
            value = _value_after(given, args)
            field = given.removeprefix("--").replace("-", "_")
            hint = f"a field of the step's configuration is set with --set {field}={value}"
        return MemprofError(f"memprof {self.name} has no option {given}: {hint}")

    def invoke(self, ctx: Any) -> Any:
        """Do what the command does.

        Raises:
            MemprofError: an option has no effect on what was asked for.
        """
        given = {
            str(param.name): _written(param, ctx.params[param.name])
            for param in self.params
            if param.name in ctx.params and ctx.get_parameter_source(param.name).name == "COMMANDLINE"
        }
        _choose_framework(str(self.name), ctx.params, given)
        sentence = refusal(str(self.name), ctx.params, given)
        if sentence is not None:
            raise MemprofError(sentence)
        be_quiet(bool(ctx.params.get("quiet")))
        if "target" in (ctx.default_map or {}):
            from memprof.sources.jax.targets.resolve import ProjectTarget

            ctx.params["target"] = ProjectTarget(ctx.params["target"])
        return super().invoke(ctx)


def _choose_framework(command: str, values: dict[str, Any], given: Mapping[str, str]) -> None:
    """Trace the user's own code if it is written with PyTorch.

    Raises:
        MemprofError: the command, or the framework on the command line, is for steps of JAX only.
    """
    from memprof.workloads.user.frameworks import is_of_torch

    named = next((values[each] for each in ("workload", "what", "server") if each in values), None)
    name = named[0] if isinstance(named, list) and named else named
    if isinstance(name, str) and is_of_torch(name):
        if "framework" not in values:
            raise MemprofError(
                f"{name} is written with PyTorch, and `memprof {command}` is for steps of JAX: use `memprof run`,"
                " `compare`, `fit`, `check` or `watch`"
            )
        several = isinstance(values["framework"], list)
        if "framework" not in given:
            values["framework"] = [FrameworkName.TORCH] if several else FrameworkName.TORCH
        elif FrameworkName.JAX in (values["framework"] if several else [values["framework"]]):
            raise MemprofError(f"{name} is written with PyTorch: leave out --framework jax")


def _value_after(name: str, args: list[str]) -> str:
    """The value that an option has on the command line, as `--name VALUE` or `--name=VALUE`."""
    for position, text in enumerate(args):
        if text.startswith(f"{name}="):
            return text.partition("=")[2]
        if text == name and position + 1 < len(args) and not args[position + 1].startswith("-"):
            return args[position + 1]
    return "VALUE"


def _with_values(params: list[Any]) -> list[Any]:
    """The parameters as the help shows them: by the values that they take, in words, and not by Python's types.

    Typer asks for them more than once, and it is the same objects each time.
    """
    for param in params:
        choices = param.type_descriptor.choices if param.type_descriptor.is_choice else ()
        if choices and param.metavar is None:
            *first, last = (str(choice.value) for choice in choices)
            named = f"{', '.join(first)} or {last}" if first else last
            param.help = f"{param.help.rstrip('.:')}: {named}."
            param.metavar = str(param.name).upper() if param.param_type_name == "argument" else "NAME"
        if param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None  # its name stands there already
        elif param.metavar is None:
            param.metavar = "" if param.is_flag else "N"
        param.min = param.max = None  # of the help alone: what is out of range is refused with its range
    return params


def _with_one_long_name(param: Any) -> Any:
    """An option as the help shows it: by the first of its long names, as two are cut in 80 columns."""
    shown = copy(param)
    longs = [name for name in param.opts if name.startswith("--")]
    shown.opts = [name for name in param.opts if name not in longs[1:]]
    return shown


def _in_paragraphs(text: str) -> str:
    """A docstring for the help: a paragraph is one line, which is wrapped; examples keep their lines."""
    return "\n\n".join(
        "\b\n" + "\n".join(f"  {line.strip()}" for line in paragraph.splitlines())
        if paragraph.startswith((" ", "memprof "))
        else paragraph.replace("\n", " ")
        for paragraph in cleandoc(text).split("\n\n")
    )


def _check(param: Any, found: object, *, num_times: int) -> None:
    """Raises `MemprofError` for what no parameter can be."""
    values: Sequence[object] = found if isinstance(found, (list, tuple)) else [found]
    if param.name == "what":  # after its own code, the arguments of a user
        values = values[:1]
    name = _written(param, found)
    for text in values:
        if isinstance(text, str) and not text.strip():
            raise MemprofError(f"{name} is empty; give it a value, or leave it out")
        if isinstance(text, str) and len(text) > _LONGEST_VALUE:
            raise MemprofError(f"{name} is longer than {_LONGEST_VALUE:,} characters; make it shorter")
    if num_times > 1 and param.param_type_name == "option" and not param.multiple:
        raise MemprofError(f"{name} is given {num_times} times, but takes one value; give it once")


def _written(param: Any, value: object) -> str:
    """How a parameter is written on the command line."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).strip("[]").upper()
    options = param.secondary_opts if value is False and param.secondary_opts else param.opts
    return str(max(options, key=len)) if param.name != "technique" else "--technique"
