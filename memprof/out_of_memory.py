"""Explain an out-of-memory error: print the memory report of the failed step, then let the error propagate."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from memprof.analysis.records.categories import Role
from memprof.errors import MemprofError
from memprof.sources.jax.tracing.step_checks import check_callable

_SIGN = "RESOURCE_EXHAUSTED"


class explain_oom:  # noqa: N801 - it is used like a function
    """Print the memory report of a step to stderr if a device runs out of memory.

    Use it around a training loop, with the step and its arguments, of which only the shapes are kept:

        with memprof.explain_oom(train_step, state, batch, donate_argnums=(0,)):
            for batch in batches:
                state, loss = train_step(state, batch)

    or as a decorator of the step:

        @memprof.explain_oom()
        @jax.jit
        def train_step(state, batch): ...

    The original error then propagates unchanged.
    """

    def __init__(
        self,
        step: Callable[..., Any] | None = None,
        /,
        *args: Any,
        target: str | None = "local",
        donate_argnums: Sequence[int] | int = (),
        static_argnums: Sequence[int] | int = (),
        roles: Mapping[str, Role | str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take the step, its arguments and the options of `memprof.profile`; a decorator takes the options alone.

        Args:
            step: the step that the block calls; None for a decorator, which takes the arguments of each call.
            args, kwargs: the arguments of the step: pytrees of arrays or of `jax.ShapeDtypeStruct`.
            target: as for `memprof.profile`; by default the local accelerator.
            donate_argnums, static_argnums, roles: as for `memprof.profile`.

        Raises:
            MemprofError: the step is not callable.
        """
        if step is not None:
            check_callable(step)
        self._step = step
        self._options: dict[str, Any] = {
            "target": target,
            "donate_argnums": donate_argnums,
            "static_argnums": static_argnums,
            "roles": roles,
        }
        self._shapes = shapes_of((args, kwargs)) if step else None

    def __enter__(self) -> explain_oom:
        if self._step is None:
            raise MemprofError("explain_oom around a block needs the step and its arguments: explain_oom(step, *args)")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and is_out_of_memory(error):
            assert self._step is not None
            self._explain(self._step, self._shapes)

    def __call__(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a step so that its memory is explained if a call runs out of memory.

        Raises:
            MemprofError: a step was given already, for example because the decorator lacks its parentheses, or `step`
                is not callable.
        """
        if self._step is not None:
            raise MemprofError("as a decorator, explain_oom takes empty parentheses: @explain_oom()")
        check_callable(step)

        @functools.wraps(step)
        def explained(*args: Any, **kwargs: Any) -> Any:
            shapes = shapes_of((args, kwargs))  # before the call, which deletes donated arguments
            try:
                result = step(*args, **kwargs)
            except Exception as error:
                if is_out_of_memory(error):
                    self._explain(step, shapes)
                raise
            return result

        return explained

    def _explain(self, step: Callable[..., Any], shapes: Any) -> None:
        from memprof.api import profile

        args, kwargs = shapes
        try:
            report = str(profile(step, *args, **self._options, **kwargs))
        except Exception as error:  # no error here may hide the original error
            report = f"memprof cannot explain it: {type(error).__name__}: {error}"
        print(f"memprof: a device is out of memory\n{report}", file=sys.stderr)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is XLA's out-of-memory error (`RESOURCE_EXHAUSTED`)."""
    return _SIGN in str(error) and type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")


def shapes_of(tree: Any) -> Any:
    """Replace the arrays of a pytree with `jax.ShapeDtypeStruct`s; other leaves stay."""
    import jax

    def shape(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)

    return jax.tree.map(shape, tree)
