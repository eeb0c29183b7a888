"""The part of a loss in which examples do not mix, computed one chunk of examples after another.

Such parts are the encoders before a contrastive loss, and the network before a recurrence over time. A loop goes over
the chunks, with a checkpoint around its body, so the backward pass recomputes each chunk. The rest of the loss, which
mixes the examples, is computed once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp

from memprof.analysis.records.rewrites import ExamplesInChunks
from memprof.sources.jax.checkpointing.apply import Differentiated
from memprof.sources.jax.checkpointing.blocks import made_bytes
from memprof.sources.jax.checkpointing.divided_loss import LEAST_SHARE, DividedLoss, Loss, losses_divided
from memprof.sources.jax.checkpointing.division import Division

_MOST_STORED = 0.25  # of the bytes made in chunks: what the rest of the loss reads of them


def examples_in_chunks(rewrite: ExamplesInChunks) -> AbstractContextManager[list[Loss]]:
    """Compute all functions that are differentiated within a `with` block in chunks, up to where examples mix.

    Raises:
        MemprofError: no function can be divided.
    """
    return losses_divided(lambda function: _Chunked(function, rewrite), "chunks of examples")


class _Chunked(DividedLoss):
    """A function whose first part is computed in chunks."""

    def __init__(self, function: Differentiated, rewrite: ExamplesInChunks) -> None:
        super().__init__(function, rewrite.number, interleaved=rewrite.interleaved)

    def refusal(self, division: Division) -> str:
        """Return why chunks would save little; empty if they save much."""
        if division.divided_bytes < max(LEAST_SHARE * division.whole_bytes, 1):
            return next(iter(division.reasons.values()), "it does not depend on the examples")
        sums, rows = self.wanted(division)
        is_large = made_bytes([*sums, *rows]) > _MOST_STORED * division.divided_bytes
        return "its examples mix too early" if is_large else ""

    def __call__(self, *args: Any) -> list[Any]:
        """Return the results of the function."""
        floats = [args[number] for number in self.floats]
        part = jax.checkpoint(self.part(args, [*self.sums, *self.rows]), prevent_cse=False)

        def add(totals: list[Any], index: Any) -> tuple[list[Any], list[Any]]:
            found = part(index, *floats)
            shares = found[: len(self.sums)]
            added = [total + share.astype(total.dtype) for total, share in zip(totals, shares, strict=True)]
            return added, found[len(self.sums) :]

        totals, parts = jax.lax.scan(add, self.zero_sums(), jnp.arange(self.num_parts))
        return self.whole(args, totals, parts)
