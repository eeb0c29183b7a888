"""What all commands have in common: no option is empty, there twice, or given for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

from memprof.errors import MemprofError
from memprof.profiler_cli.option_table import refusal

_LONGEST_VALUE = 4096  # the longest path; of much longer texts, Python makes no number
_OF_THE_USER = "arguments"  # what their own code finds in sys.argv is their business


class Verb(TyperCommand):
    """A command that refuses what it would ignore."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options as Typer does.

        Raises:
            MemprofError: one is empty, endless, or there more than once.
        """
        found, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param in {each.name: each for each in order}.values():
            if param.name in found and param.name != _OF_THE_USER:
                _check(param, found[param.name], num_times=sum(each is param for each in order))
        return super().parse_args(ctx, args)

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
        sentence = refusal(str(self.name), ctx.params, given)
        if sentence is not None:
            raise MemprofError(sentence)
        return super().invoke(ctx)


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
        raise MemprofError(f"{name} is there {num_times} times, and takes one value; give it once")


def _written(param: Any, value: object) -> str:
    """How a parameter is written on the command line."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).strip("[]").upper()
    options = param.secondary_opts if value is False and param.secondary_opts else param.opts
    return str(max(options, key=len)) if param.name != "technique" else "--technique"
