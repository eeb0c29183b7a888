"""What several rules ask of the buffers that a step makes on its way."""

from __future__ import annotations

import re
from collections.abc import Iterable

from memprof.analysis.categories import Category, Phase
from memprof.analysis.report import LiveBuffer

FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
# Made in the forward and backward passes, and no gradient of a parameter.
MADE_IN_PASSES = frozenset(
    {Category.ACTIVATIONS, Category.COTANGENTS, Category.FORWARD_TEMPS, Category.RECOMPUTED}
)  # fmt: skip


def made_at(buffer: LiveBuffer) -> str:
    """Where a buffer is made, short enough for a sentence: `model.py:12`, or the operation where no line is known."""
    return re.split(r"[/\\\\]", buffer.source)[-1] or buffer.op


def has_passes(buffers: Iterable[LiveBuffer]) -> bool:
    """Whether some are made in the forward pass and some in the backward pass."""
    phases = {buffer.phase for buffer in buffers}
    return Phase.FORWARD in phases and Phase.BACKWARD in phases
