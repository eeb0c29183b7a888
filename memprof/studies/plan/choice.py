"""Choose the results to keep for the backward pass, with the least recomputation: an integer program.

The result of each operation of a block is kept, recomputed, or neither. If the backward pass needs it, it is kept or
recomputed, and so is each input of a recomputed operation. The kept results must not exceed a number of bytes.
Operations of one signature are kept together, because a checkpoint policy cannot distinguish them. HiGHS solves the
program. The formulation is that of Checkmate (Jain et al., 2020) without an order of time, because XLA decides the
order.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from memprof.analysis.records.checkpoints import Block, Operation, Signature

# Operations whose cost exceeds their FLOPs and bytes, or that users ask about.
_NOTABLE = frozenset(
    "all_gather all_to_all pmax pmin ppermute psum psum2 psum_invariant random_bits reduce_scatter rng_bit_generator"
    " shard_map threefry2x32".split()
)
_SECONDS, _GAP = 10.0, 1e-3
_TIE = 1e-6  # if two choices cost the same time, prefer the smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The results to keep, and their cost by the model.

    Attributes:
        size_bytes: size of all kept results, in all blocks.
        seconds: time of the recomputation, at the peaks of the target.
    """

    kept: frozenset[Signature]
    size_bytes: int
    seconds: float


def cheapest_choice(blocks: Sequence[Block], budget_bytes: int) -> Choice:
    """Return the results to keep within a number of bytes that leave the least time for recomputation."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]  # takes 0.4 s
    from scipy.sparse import coo_array  # type: ignore[import-untyped]

    size_of = sizes_of(blocks)
    number_of = {signature: number for number, signature in enumerate(size_of)}
    sizes = np.array(list(size_of.values()), dtype=np.float64)
    first = len(number_of)  # the variables: kept, by signature; then recomputed, by operation
    seconds = np.array([block.count * each.seconds for block in blocks for each in block.operations])
    rows: list[list[tuple[int, float]]] = []  # each at least its lower bound
    lower: list[float] = []
    for block in blocks:  # its operations are numbered from `first`
        for number, operation in enumerate(block.operations, start=first):
            kept = number_of[operation.signature]
            if operation.is_needed:
                rows.append([(kept, 1.0), (number, 1.0)])
                lower.append(1.0)
            for each in operation.inputs:
                source = block.operations[each]
                rows.append([(number_of[source.signature], 1.0), (first + each, 1.0), (number, -1.0)])
                lower.append(0.0)
        first += len(block.operations)
    scale = max(float(sizes.sum()), 1.0)
    rows.append([(number, -size / scale) for number, size in enumerate(sizes)])
    lower.append(-max(budget_bytes, 0) / scale)
    entries = [(row, column, value) for row, each in enumerate(rows) for column, value in each]
    matrix = coo_array(
        ([value for *_, value in entries], ([row for row, *_ in entries], [column for _, column, _ in entries])),
        shape=(len(rows), len(sizes) + len(seconds)),
    ).tocsr()
    total = max(float(seconds.sum()), 1e-12)
    with _no_output():
        found = milp(
            np.concatenate([_TIE * sizes / scale, seconds / total]),
            integrality=np.concatenate([np.ones(len(sizes)), np.zeros(len(seconds))]),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, lb=np.array(lower)),
            options={"time_limit": _SECONDS, "mip_rel_gap": _GAP},
        )
    values = np.zeros(len(sizes)) if found.x is None else found.x
    return choice_of(blocks, {signature for signature, number in number_of.items() if values[number] > 0.5})


@contextmanager
def _no_output() -> Iterator[None]:
    """Suppress HiGHS's output to stdout, which its options do not turn off completely (scipy 1.16)."""
    sys.stdout.flush()
    with open(os.devnull, "wb") as nowhere:
        kept = os.dup(1)
        os.dup2(nowhere.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)


def choice_of(blocks: Sequence[Block], kept: Collection[Signature]) -> Choice:
    """Return the choice that keeps the results of some operations, without those that no backward pass uses."""
    size_bytes, seconds = 0, 0.0
    used: set[Signature] = set()
    for block in blocks:
        stored, repeated = _stored_and_repeated(block, kept)
        used.update(each.signature for each in stored)
        size_bytes += block.count * sum(each.size_bytes for each in stored)
        for operation in repeated:
            seconds += block.count * operation.seconds
    return Choice(kept=frozenset(used), size_bytes=size_bytes, seconds=seconds)


def notable_repeats(blocks: Sequence[Block], kept: Collection[Signature]) -> Counter[str]:
    """Count the collectives and random numbers that are recomputed if these results are kept, by primitive."""
    found: Counter[str] = Counter()
    for block in blocks:
        for operation in _stored_and_repeated(block, kept)[1]:
            if operation.signature.primitive in _NOTABLE:
                found[operation.signature.primitive] += block.count
    return found


def _stored_and_repeated(block: Block, kept: Collection[Signature]) -> tuple[list[Operation], list[Operation]]:
    """Return the operations of a block whose results are kept for the backward pass, and those that are recomputed."""
    needed = {number for number, each in enumerate(block.operations) if each.is_needed}
    stored: list[Operation] = []
    repeated: list[Operation] = []
    for number in reversed(range(len(block.operations))):
        operation = block.operations[number]
        if number not in needed:
            continue
        if operation.signature in kept:
            stored.append(operation)
        else:
            repeated.append(operation)
            needed.update(operation.inputs)
    return stored, repeated


def sizes_of(blocks: Sequence[Block]) -> dict[Signature, int]:
    """Return the bytes of each signature's results in all blocks, if they are kept."""
    sizes: dict[Signature, int] = defaultdict(int)
    for block in blocks:
        for operation in block.operations:
            sizes[operation.signature] += block.count * operation.size_bytes
    return dict(sizes)
