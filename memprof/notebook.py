"""The magics of a notebook, after `%load_ext memprof`.

    %memprof --target h100-80gb train_step(state, batch)

profiles the call, which is not made. As the first line of a cell, `%%memprof --target h100-80gb` runs the cell and
profiles each jitted function that its lines call, once for each kind of arguments; what the cell only defines, and what
functions call in their turn, is not looked at.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.display import display

from memprof.api import Profile, profile
from memprof.errors import MemprofError
from memprof.out_of_memory import is_out_of_memory, shapes_of

_WATCHED = "_memprof_watched"  # what calls in a watched cell go through
_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.GeneratorExp)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Make the magics known; IPython calls this."""
    shell.register_magics(MemprofMagics)


@magics_class
class MemprofMagics(Magics):  # type: ignore[misc]
    """`%memprof` and `%%memprof`."""

    @line_cell_magic  # type: ignore[untyped-decorator]
    def memprof(self, line: str, cell: str | None = None) -> Profile | None:
        """Profile a call, or the jitted functions that a cell calls.

        %memprof [--target NAME] step(state, batch)
        """
        options, code = self.parse_options(line, "", "target=", posix=False)
        target = options.get("target")
        try:
            if cell is None:
                return self._of_call(code, target)
            if code.strip():
                raise MemprofError(f"%%memprof takes options alone, and '{code.strip()}' is none: put it into the cell")
            for each in self._of_cell(cell, target):
                display(each)
        except MemprofError as error:
            raise UsageError(f"memprof: {error}") from error
        return None

    def _of_call(self, code: str, target: str | None) -> Profile:
        example = "%memprof train_step(state, batch)"
        try:
            call = ast.parse(code.strip(), mode="eval").body
        except SyntaxError as error:
            raise MemprofError(f"'{code.strip()}' is no expression: write a call, {example}") from error
        if not isinstance(call, ast.Call):
            raise MemprofError(f"'{code.strip()}' is no call of a function: write {example}")
        # A call of another function, with the arguments as they would arrive: evaluated, but not passed on.
        asked = ast.Call(
            func=ast.Name(id=_WATCHED, ctx=ast.Load()), args=[call.func, *call.args], keywords=call.keywords
        )
        source = compile(ast.fix_missing_locations(ast.Expression(asked)), "<memprof>", "eval")
        names = {**self.shell.user_ns, _WATCHED: lambda fn, *args, **kwargs: (fn, args, kwargs)}
        fn, args, kwargs = eval(source, names)
        return profile(fn, *args, target=target, **kwargs)

    def _of_cell(self, cell: str, target: str | None) -> Iterator[Profile]:
        calls = _Calls()
        with _watched(self.shell, calls):
            error = self.shell.run_cell(cell).error_in_exec
        if error is not None and not is_out_of_memory(error):
            return  # IPython has shown it
        if not calls.found:
            raise MemprofError("no line of the cell calls a jitted function, so there is nothing to profile")
        for fn, args, kwargs in calls.found.values():
            yield profile(fn, *args, target=target, **kwargs)


class _Calls:
    """The calls of jitted functions that were made, with the shapes of their arguments, one of each kind."""

    def __init__(self) -> None:
        self.found: dict[Any, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {}

    def watch(self, fn: Any) -> Any:
        """What is called in the place of `fn`: it does the same."""
        if isinstance(fn, type) or not callable(getattr(fn, "lower", None)):
            return fn

        def watched(*args: Any, **kwargs: Any) -> Any:
            # Before the call: what it donates is gone afterwards.
            shapes, structure = jax.tree.flatten(shapes_of((args, kwargs)))
            if not any(isinstance(leaf, jax.core.Tracer) for leaf in shapes):
                args_of_shapes, kwargs_of_shapes = jax.tree.unflatten(structure, shapes)
                key = fn, structure, tuple(map(str, shapes))
                self.found.setdefault(key, (fn, args_of_shapes, kwargs_of_shapes))
            return fn(*args, **kwargs)

        return watched


@contextmanager
def _watched(shell: InteractiveShell, calls: _Calls) -> Iterator[None]:
    """Have the calls of a cell's own lines watched for a while."""
    watcher = _CallsOfLines()
    shell.ast_transformers.append(watcher)
    shell.user_ns[_WATCHED] = calls.watch
    try:
        yield
    finally:
        shell.ast_transformers.remove(watcher)
        del shell.user_ns[_WATCHED]


class _CallsOfLines(ast.NodeTransformer):
    """Makes `f(x)` call what `watch` gives for `f`, but in functions and classes, which may be called later."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        watched = ast.Call(func=ast.Name(id=_WATCHED, ctx=ast.Load()), args=[node.func], keywords=[])
        node.func = ast.copy_location(watched, node.func)
        return ast.fix_missing_locations(node)

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, _LATER) else super().visit(node)
