"""Prove from traces that a changed step has the operations of the original one, some perhaps repeated.

Both steps are traced with their checkpoints and jits inlined, before differentiation. A checkpoint changes when an
operation runs but no value, so inlining it changes no result. If the two traces compute the same results by the same
operations, so do the two steps, for all arguments and up to rounding: XLA may fuse operations and sum gradients in
another order.

The proof covers checkpoints, donation, shardings of arguments and options of XLA. It says nothing about steps whose
operations differ or that have side effects.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax

from memprof.analysis.records.capture import Target
from memprof.sources.jax.compile import traced_step
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.jitting import TracedStep
from memprof.sources.jax.tracing.step import StepSpec
from memprof.sources.jax.tracing.value_numbers import NoNumberError, ValueNumbers


class Operations:
    """The operations of a step, which are compared with those of changed steps.

    Raises:
        Exception: whatever the user's code raises.
    """

    def __init__(self, spec: StepSpec, target: Target) -> None:
        self._target = target
        self._step = _inlined_trace(spec, target)
        self._numbers = ValueNumbers()
        try:
            self._results = self._numbers.of(self._step.jaxpr, range(len(self._step.jaxpr.in_avals)))
        except NoNumberError:
            self._results = ()

    def are_those_of(
        self, changed: StepSpec, around: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> bool:
        """Whether a changed step computes the same results from the same arguments, by the same operations.

        Args:
            around: the context of the change.

        Raises:
            Exception: whatever the user's code raises.
        """
        if not self._results:
            return False
        with around():
            step = _inlined_trace(changed, self._target)
        places = _places(self._step, step)
        if places is None or _kinds(step) != [_kinds(self._step)[place] for place in places]:
            return False
        try:
            return self._numbers.of(step.jaxpr, places) == self._results
        except NoNumberError:
            return False


def _inlined_trace(spec: StepSpec, target: Target) -> TracedStep:
    """Trace a step with its checkpoints and jits inlined."""
    with jit_adapter.calls_inlined():
        return traced_step(spec, target)


def _places(before: TracedStep, after: TracedStep) -> list[int] | None:
    """Return, for each argument leaf of a changed step, the place of the same leaf in the original one, or None."""
    (old, structure), (new, changed) = (jax.tree.flatten(each.given) for each in (before, after))
    if structure == changed:
        return list(range(len(old)))
    place_of = {id(leaf): place for place, leaf in enumerate(old)}
    if len(place_of) != len(old) or place_of.keys() != {id(leaf) for leaf in new} or len(new) != len(old):
        return None  # the leaves differ, or one appears in several places
    return [place_of[id(leaf)] for leaf in new]


def _kinds(step: TracedStep) -> list[tuple[Any, Any]]:
    return [(aval.shape, aval.dtype) for aval in step.jaxpr.in_avals]
