"""When memory runs out: the breakdown of the step that did it, before the error goes on its way."""

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
    """Explain the memory of a step when a device runs out of it.

    Around a training loop, with the step and its arguments, of which only the shapes are kept:

        with memprof.explain_oom(train_step, state, batch, donate_argnums=(0,)):
            for batch in batches:
                state, loss = train_step(state, batch)

    or around the step itself:

        @memprof.explain_oom()
        @jax.jit
        def train_step(state, batch): ...

    The report of the compiled step goes to stderr; then the error is raised as it was.
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
        """Args: as those of `memprof.profile`; none for the decorator, which takes what the step is called with."""
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
        """Explain the memory of a function when a call of it runs out.

        Raises:
            MemprofError: there is a step already, as where the decorator was written without parentheses.
        """
        if self._step is not None:
            raise MemprofError("explain_oom decorates a function with parentheses and nothing in them: @explain_oom()")
        check_callable(step)

        @functools.wraps(step)
        def explained(*args: Any, **kwargs: Any) -> Any:
            shapes = shapes_of((args, kwargs))  # a donated argument has none any more once the step has failed
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
        except Exception as error:  # whatever it is, it must not hide the error that is being explained
            report = f"memprof cannot explain it: {type(error).__name__}: {error}"
        print(f"memprof: a device is out of memory\n{report}", file=sys.stderr)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is XLA's of a device that ran out of memory."""
    return _SIGN in str(error) and type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")


def shapes_of(tree: Any) -> Any:
    """A pytree with the shapes of its arrays in their place; whatever else it has stays."""
    import jax

    def shape(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)

    return jax.tree.map(shape, tree)
