"""Trace a whole step, and evaluate its jaxpr in another way. The user's files stay unchanged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
from jax.extend import core

from memprof.sources.jax.checkpointing.apply import Results, rejitted
from memprof.sources.jax.checkpointing.evaluation import without_jits
from memprof.sources.jax.tracing.jitting import is_array, nnx_objects


def reevaluated(
    step: Callable[..., Any],
    evaluate: Callable[[core.ClosedJaxpr, Sequence[Any]], list[Any]],
    *,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
    is_leaf: Callable[[Any], bool] = lambda part: False,
    whole: Callable[[Any], Any] = lambda leaf: leaf,
) -> Callable[..., Any]:
    """Return a step whose jaxpr is evaluated in another way, jitted with the step's own options.

    Args:
        evaluate: computes the results from the step's jaxpr without jits, and its arrays.
        around: the context in which the step is traced.
        is_leaf: whether a part of the arguments stands for one array.
        whole: returns that array.

    Raises:
        MemprofError: a framework has jitted the step.
    """

    def change(inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def changed(*args: Any, **kwargs: Any) -> Any:
            own = {id(each) for each in nnx_objects((args, kwargs))}
            leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=lambda part: id(part) in own or is_leaf(part))
            objects = _Objects({place: leaf for place, leaf in enumerate(leaves) if id(leaf) in own})
            num_leaves = len(leaves)
            leaves += objects.leaves
            arrays = [leaf if id(leaf) in own else whole(leaf) for leaf in leaves]
            places = [place for place, leaf in enumerate(arrays) if id(leaf) not in own and is_array(leaf)]

            def run(*given: Any) -> Any:
                every = dict(enumerate(arrays)) | dict(zip(places, given, strict=True))
                made = objects.made_of([every[place] for place in range(num_leaves, len(arrays))])
                every |= made
                args, kwargs = jax.tree.unflatten(structure, [every[place] for place in range(num_leaves)])
                return inner(*args, **kwargs), objects.state_of(made)

            results = Results(run)
            with around():
                closed = without_jits(jax.make_jaxpr(results.arrays)(*[arrays[place] for place in places]))
            found, state = results.whole(evaluate(closed, [leaves[place] for place in places]))
            objects.update(state)
            return found

        return changed

    return rejitted(step, change)


class _Objects:
    """The NNX objects among a step's arguments, which the step changes in place.

    Attributes:
        leaves: the leaves of their state.
    """

    def __init__(self, by_place: dict[int, Any]) -> None:
        self._by_place = by_place
        self.leaves: list[Any] = []
        if by_place:
            from flax import nnx

            self._graph, state = nnx.split([*by_place.values()])
            self.leaves, self._structure = jax.tree.flatten(state)

    def made_of(self, leaves: Sequence[Any]) -> dict[int, Any]:
        """Return copies of the objects with other leaves, by place."""
        if not self._by_place:
            return {}
        from flax import nnx

        made = nnx.merge(self._graph, jax.tree.unflatten(self._structure, leaves))
        return dict(zip(self._by_place, made, strict=True))

    def state_of(self, by_place: dict[int, Any]) -> Any:
        """Return the state of such copies."""
        if not by_place:
            return None
        from flax import nnx

        return nnx.state([*by_place.values()])

    def update(self, state: Any) -> None:
        """Change the objects' own state to that of copies."""
        if self._by_place:
            from flax import nnx

            nnx.update([*self._by_place.values()], state)
