"""Checkpointing of blocks: the values that the backward pass needs, the costs of saving and recomputing, the choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

LAYER_INPUT = "layer_input"  # in place of a primitive: a value that a loop carries into its body


class Signature(NamedTuple):
    """An operation as a checkpoint policy sees it.

    Attributes:
        inputs: the shape and dtype of each input.
        dimension_numbers: the dimension numbers of a matrix product or a convolution, as text; the text `None` for
            other primitives.
    """

    primitive: str
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    dimension_numbers: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of the forward pass of a block.

    Attributes:
        inputs: the operations of the block whose results it reads, by number, without the block's own arguments.
        size_bytes: the size of its results.
        seconds: the time to recompute them, at the peaks of the target.
        is_needed: whether the backward pass reads a result.
        is_input: whether it stands for an input of the block, which is saved or offloaded, but never recomputed.
    """

    signature: Signature
    inputs: tuple[int, ...]
    size_bytes: int
    seconds: float
    is_needed: bool
    is_input: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of a step under a checkpoint: a layer, or the body of a scan.

    Attributes:
        operations: the operations that the backward pass needs, and their inputs; makers before users.
        count: the number of runs of the block in a step.
        carried_bytes: the size of the inputs that are results of the run before: the carry of a scan, or what the layer
            before returns.
        inner_count: for a scan within another scan, the number of iterations in one run of it; otherwise None.
    """

    operations: tuple[Operation, ...]
    count: int
    carried_bytes: int = 0
    inner_count: int | None = None

    def num_at_once(self, group_size: int | None) -> int:
        """Return how many runs keep their results at the same time, if blocks are in groups of a size."""
        if group_size is None:
            return self.count
        if self.inner_count is not None:
            return self.inner_count
        return group_size if enough_for_groups(self.count, group_size) else self.count


def enough_for_groups(count: int, size: int) -> bool:
    """Whether a number of blocks is large enough for groups of a size: for at least two."""
    return count >= 2 * size


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """The operations of each block whose results are saved for the backward pass. The others are recomputed.

    Attributes:
        kept: the operations saved by the first blocks.
        offloaded: the operations whose results wait in host memory for the backward pass.
        num_first: the number of these blocks; None means all.
        kept_by_rest: the operations saved by the remaining blocks; None if those have no checkpoint.
        group_size: the number of blocks that share another checkpoint, which saves only the inputs of the first one;
            None means that there are no groups. The groups of a scan within another scan are its runs.
    """

    kept: frozenset[Signature]
    offloaded: frozenset[Signature] = frozenset()
    num_first: int | None = None
    kept_by_rest: frozenset[Signature] | None = None
    group_size: int | None = None

    def kept_by(self, number: int) -> frozenset[Signature] | None:
        """Return the operations that the block with this number saves; None if it has no checkpoint."""
        return self.kept if self.num_first is None or number < self.num_first else self.kept_by_rest
