"""The part of a loss in which examples do not mix, computed one chunk of examples after another.

Such parts are the encoders before a contrastive loss, and the network before a recurrence over time. A loop goes over
the chunks, with a checkpoint around its body, so the backward pass recomputes each chunk. The rest of the loss, which
mixes the examples, is computed once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import jax

from memprof.analysis.records.rewrites import ExamplesInChunks
from memprof.sources.jax.checkpointing.divided_loss import DividedLoss, Loss, losses_divided


def examples_in_chunks(rewrite: ExamplesInChunks) -> AbstractContextManager[list[Loss]]:
    """Compute all functions that are differentiated within a `with` block in chunks, up to where examples mix.

    Raises:
        MemprofError: no function can be divided.
    """
    return losses_divided(lambda function: _Chunked(function, rewrite), "chunks of examples")


class _Chunked(DividedLoss):
    """A function whose first part is computed in chunks."""

    def __call__(self, *args: Any) -> list[Any]:
        """Return the results of the function."""
        part = self.part(args, [*self.sums, *self.rows])
        return self.looped(args, jax.checkpoint(part, prevent_cse=False))
