"""IPython magics for notebooks, available after `%load_ext memprof`.

    %memprof --target h100-80gb train_step(state, batch)

profiles the call without running it. `%%memprof --target h100-80gb`, as the first line of a cell, runs the cell and
profiles each jitted function that it calls, once for each combination of argument types. JAX's own functions are
skipped.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.display import display

from memprof.api import Profile, profile
from memprof.errors import MemprofError
from memprof.out_of_memory import is_out_of_memory, shapes_of
from memprof.sources.jax.tracing import jit_adapter

_ASKED = "_memprof_asked"  # name of the stand-in that is called instead of the user's function


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics; IPython calls this for `%load_ext memprof`."""
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
                raise MemprofError(
                    f"%%memprof takes only options, but '{code.strip()}' is not one: move it into the cell"
                )
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
            raise MemprofError(f"'{code.strip()}' is not an expression: write a call, {example}") from error
        if not isinstance(call, ast.Call):
            raise MemprofError(f"'{code.strip()}' is not a function call: write {example}")
        # Call a stand-in instead: Python evaluates the arguments, but the user's function is not called.
        asked = ast.Call(func=ast.Name(id=_ASKED, ctx=ast.Load()), args=[call.func, *call.args], keywords=call.keywords)
        source = compile(ast.fix_missing_locations(ast.Expression(asked)), "<memprof>", "eval")
        names = {**self.shell.user_ns, _ASKED: lambda fn, *args, **kwargs: (fn, args, kwargs)}
        fn, args, kwargs = eval(source, names)
        return profile(fn, *args, target=target, **kwargs)

    def _of_cell(self, cell: str, target: str | None) -> Iterator[Profile]:
        calls: list[tuple[Any, Any, Any]] = []

        def called(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            if jit_adapter.is_of_jax(fn):
                return
            outer = jit_adapter.outer_call(fn)
            call = outer if outer and jit_adapter.is_framework_jit(outer[0]) else (fn, args, kwargs)
            calls.append(shapes_of(call))  # before the call, which deletes donated arguments

        with jit_adapter.watch_calls(called):
            error = self.shell.run_cell(cell).error_in_exec
        if error is not None and not is_out_of_memory(error):
            return  # IPython has already shown the error
        if not calls:
            raise MemprofError("the cell calls no jitted function, so there is nothing to profile")
        for fn, args, kwargs in calls:
            yield profile(fn, *args, target=target, **kwargs)
