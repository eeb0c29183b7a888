"""Gradients accumulated over minibatches, in an unmodified step.

A loop computes the loss and the gradients of one minibatch after another and adds them up, so only one minibatch's
activations exist at a time. Nothing is recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp

from memprof.analysis.records.rewrites import InMinibatches
from memprof.sources.jax.checkpointing.actions import UndividedError
from memprof.sources.jax.checkpointing.apply import Differentiated
from memprof.sources.jax.checkpointing.divided_loss import LEAST_SHARE, DividedLoss, Loss, losses_divided, sum_dtype
from memprof.sources.jax.checkpointing.division import Division
from memprof.sources.jax.checkpointing.evaluation import as_function
from memprof.sources.jax.checkpointing.pieces import Total
from memprof.sources.jax.tracing import jit_adapter


def in_minibatches(rewrite: InMinibatches) -> AbstractContextManager[list[Loss]]:
    """Accumulate the gradients of all functions that are differentiated within a `with` block and can be divided.

    Raises:
        MemprofError: no function can be divided.
    """
    return losses_divided(lambda function: _Accumulated(function, rewrite), "minibatches")


class _Accumulated(DividedLoss):
    """A loss whose gradients are accumulated over minibatches."""

    def __init__(self, function: Differentiated, rewrite: InMinibatches) -> None:
        if not function.is_loss:
            raise UndividedError("the differentiated function returns more than a loss")
        super().__init__(function, rewrite)
        self._vjp, self.vjp = function.vjp, jit_adapter.plain_vjp()

    def refusal(self, division: Division) -> str:
        """Return why the loss is no sum over the examples; empty if it is."""
        state, loss = division.results[0], self.jaxpr.outvars[0]
        if state is Total.LATER:
            return division.reasons[loss]
        if state is None:
            return "it does not depend on the examples"
        is_small = division.divided_bytes < LEAST_SHARE * division.whole_bytes
        return "only a small part of it is a sum over the examples" if is_small else ""

    def __call__(self, *args: Any) -> list[Any]:
        """Return the results of the function; its derivative is that of the minibatches."""
        whole = jax.custom_vjp(as_function(self.closed))
        floats = self.floats

        def forward(*args: Any) -> tuple[list[Any], list[Any]]:
            return self._accumulated(args)

        def backward(gradients: list[Any], cotangents: list[Any]) -> tuple[Any, ...]:
            scaled = {
                number: (gradient * cotangents[0]).astype(self.jaxpr.invars[number].aval.dtype)
                for number, gradient in zip(floats, gradients, strict=True)
            }
            return tuple(scaled.get(number) for number in range(len(self.jaxpr.invars)))

        whole.defvjp(forward, backward)
        return [*whole(*args)]

    def _accumulated(self, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the results of the function, and the gradients of its first result."""
        floats = [args[number] for number in self.floats]
        part = self.part(args, [self.jaxpr.outvars[0], *self.sums, *self.rows])

        def add(totals: list[Any], index: Any) -> tuple[list[Any], list[Any]]:
            def minibatch(*floats: Any) -> tuple[Any, list[Any]]:
                loss, *others = part(index, *floats)
                return loss, others

            loss, pull, found = self._vjp(minibatch, *floats, has_aux=True)
            shares = [*pull(jnp.ones_like(loss)), *found[: len(self.sums)]]
            added = [total + share.astype(total.dtype) for total, share in zip(totals, shares, strict=True)]
            return added, found[len(self.sums) :]

        zeros = [jnp.zeros_like(each, dtype=sum_dtype(each.dtype)) for each in floats]
        totals, parts = jax.lax.scan(add, zeros + self.zero_sums(), jnp.arange(self.num_parts))
        return self.whole(args, totals[len(floats) :], parts), totals[: len(floats)]
