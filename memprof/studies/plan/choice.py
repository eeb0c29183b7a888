"""Choose which forward results to keep, by an integer program that minimizes the step's time.

A result that the backward pass needs must be kept, recomputed or offloaded to the host, and so must each input of a
recomputed operation. Kept results share a budget of bytes. Operations with the same signature are kept together,
because a checkpoint policy cannot distinguish them. HiGHS solves the program. The formulation is that of Checkmate
(Jain et al., 2020) without the schedule, which XLA decides.

Offloaded results are copied to the host in the forward pass and back in the backward pass. In each pass, transfers
overlap with the kernels of their block; the block waits for the rest. XLA starts a loop's transfers within the
iteration, so a part of the iteration cannot hide them. The compiled schedule later gives a lower bound on the wait.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from memprof.analysis.records.checkpoints import LAYER_INPUT, Block, Checkpoints, Operation, Signature

# Operations that cost more than their FLOPs and bytes suggest, or that users ask about.
_NOTABLE = frozenset(
    "all_gather all_to_all pmax pmin ppermute psum psum2 psum_invariant random_bits reduce_scatter rng_bit_generator"
    " shard_map threefry2x32".split()
)
# JAX asks a policy about the operations inside these, but not about their own results.
_NEVER_ASKED = frozenset({"cond", "scan"})
_TIME_LIMIT_SECONDS, _RELATIVE_GAP = 10.0, 1e-3
_TIE_BREAK = 1e-6  # at equal time, prefer to keep less and to offload less
_MIN_OFFLOADED_BYTES = 2**20  # a smaller transfer takes longer to start than to run
_HIDING_SHARE = 0.5  # of a block's time: the part that can hide transfers
_BACKWARD_FACTOR = 2.0  # duration of the backward pass, in forward passes


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The results to keep or offload, and the modeled cost.

    Attributes:
        size_bytes: size of all kept results, in all blocks.
        offloaded_bytes: size of all offloaded results, in all blocks.
        repeated_seconds: recomputation time at the target's peak speeds.
        waiting_seconds: time of host transfers that no kernel hides.
        num_first: how many first blocks make this choice; the others have no checkpoint. None means all.
        group_size: the number of iterations of a scan that share another checkpoint; None: there are no groups.
    """

    kept: frozenset[Signature]
    size_bytes: int
    repeated_seconds: float
    offloaded: frozenset[Signature] = frozenset()
    offloaded_bytes: int = 0
    waiting_seconds: float = 0.0
    num_first: int | None = None
    group_size: int | None = None

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints that make this choice."""
        return Checkpoints(
            kept=self.kept, offloaded=self.offloaded, num_first=self.num_first, group_size=self.group_size
        )


def cheapest_choice(
    blocks: Sequence[Block],
    budget_bytes: int,
    host_bandwidth: float | None = None,
    *,
    recomputation: float = 1.0,
    seconds_per_byte: float = 0.0,
) -> Choice:
    """Return the fastest choice whose kept results fit a budget.

    Args:
        host_bandwidth: bytes per second in each direction of the host link; None: nothing is offloaded.
        recomputation: weight of recomputation time.
        seconds_per_byte: the time to store a byte, on the device or on the host.
    """
    size_of = sizes_of(blocks)
    scale = max(float(sum(size_of.values())), 1.0)
    total = max(float(sum(block.count * each.seconds for block in blocks for each in block.operations)), 1e-12)
    program = _IntegerProgram()

    def variables_for(signatures: Iterable[Signature], cost: float) -> dict[Signature, int]:
        upper = {each: 0.0 if each.primitive in _NEVER_ASKED else 1.0 for each in signatures}
        return {
            each: program.variable(cost * size_of[each] / scale, upper=upper[each], is_integer=True) for each in upper
        }

    storing = seconds_per_byte * scale / total
    kept = variables_for(size_of, _TIE_BREAK + storing)
    offloaded = {} if host_bandwidth is None else variables_for(_offloadable(blocks), 2 * _TIE_BREAK + storing)

    def stored(operation: Operation) -> list[tuple[int, float]]:
        return [(places[operation.signature], 1.0) for places in (kept, offloaded) if operation.signature in places]

    for block in blocks:
        repeated = [
            program.variable(recomputation * block.count * each.seconds / total, upper=0.0 if each.is_input else 1.0)
            for each in block.operations
        ]
        for number, operation in zip(repeated, block.operations, strict=True):
            if operation.is_needed:
                program.require([*stored(operation), (number, 1.0)], at_least=1.0)
            for each in operation.inputs:
                program.require([*stored(block.operations[each]), (repeated[each], 1.0), (number, -1.0)], at_least=0.0)
        if host_bandwidth is None:
            continue
        sizes = sizes_of([block]).items()
        transfers = [(offloaded[each], -size / host_bandwidth / total) for each, size in sizes if each in offloaded]
        for hidden in _hidden_seconds(block):
            program.require([(program.variable(1.0, upper=inf), 1.0), *transfers], at_least=-hidden / total)
    # Inputs too small to be offloaded are always kept.
    counted = (each for each in size_of if each.primitive != LAYER_INPUT or each in offloaded)
    program.require([(kept[each], -size_of[each] / scale) for each in counted], -max(budget_bytes, 0) / scale)
    values = program.solve()

    def selected(places: Mapping[Signature, int]) -> set[Signature]:
        return {signature for signature, number in places.items() if values[number] > 0.5}

    return choice_of(blocks, selected(kept), selected(offloaded), host_bandwidth)


class _IntegerProgram:
    """Minimizes the total cost of variables, with lower bounds on weighted sums of them."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._upper: list[float] = []
        self._is_integer: list[bool] = []
        self._rows: list[tuple[Sequence[tuple[int, float]], float]] = []

    def variable(self, cost: float, *, upper: float = 1.0, is_integer: bool = False) -> int:
        """Add a variable from 0 to `upper`; return its number."""
        self._costs.append(cost)
        self._upper.append(upper)
        self._is_integer.append(is_integer)
        return len(self._costs) - 1

    def require(self, terms: Sequence[tuple[int, float]], at_least: float) -> None:
        """Add a lower bound on a weighted sum of variables."""
        self._rows.append((terms, at_least))

    def solve(self) -> Sequence[float]:
        """Return the values of the variables; zeros if no solution is found in time."""
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]  # takes 0.4 s
        from scipy.sparse import coo_array  # type: ignore[import-untyped]

        entries = [(row, column, value) for row, (terms, _) in enumerate(self._rows) for column, value in terms]
        matrix = coo_array(
            ([value for *_, value in entries], ([row for row, *_ in entries], [column for _, column, _ in entries])),
            shape=(len(self._rows), len(self._costs)),
        ).tocsr()
        with _no_output():
            found = milp(
                np.array(self._costs),
                integrality=np.array(self._is_integer, dtype=np.int64),
                bounds=Bounds(0, np.array(self._upper)),
                constraints=LinearConstraint(matrix, lb=np.array([at_least for _, at_least in self._rows])),
                options={"time_limit": _TIME_LIMIT_SECONDS, "mip_rel_gap": _RELATIVE_GAP},
            )
        return [0.0] * len(self._costs) if found.x is None else list(found.x)


def _offloadable(blocks: Sequence[Block]) -> list[Signature]:
    """Return the operations whose results are large enough to be offloaded."""
    large = [each.signature for block in blocks for each in block.operations if each.size_bytes >= _MIN_OFFLOADED_BYTES]
    return list(dict.fromkeys(large))


def _hidden_seconds(block: Block) -> tuple[float, float]:
    """Return the transfer time that a block's kernels can hide, in its forward and backward passes."""
    seconds = _HIDING_SHARE * block.count * sum(each.seconds for each in block.operations)
    return seconds, _BACKWARD_FACTOR * seconds


@contextmanager
def _no_output() -> Iterator[None]:
    """Suppress HiGHS's output to stdout, which its options do not turn off completely (scipy 1.16)."""
    sys.stdout.flush()
    with open(os.devnull, "wb") as nowhere:
        saved_stdout = os.dup(1)
        os.dup2(nowhere.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(saved_stdout, 1)
            os.close(saved_stdout)


def choice_of(
    blocks: Sequence[Block],
    kept: Collection[Signature],
    offloaded: Collection[Signature] = (),
    host_bandwidth: float | None = None,
) -> Choice:
    """Return the choice that keeps or offloads the given operations' results, if the backward pass uses them.

    Block inputs that are not offloaded are kept.

    Args:
        host_bandwidth: as for `cheapest_choice`; None: transfers take no time.
    """
    moved = frozenset(offloaded).difference(kept)
    used: set[Signature] = set()
    size_bytes, offloaded_bytes, repeated_seconds, waiting_seconds = 0, 0, 0.0, 0.0
    for block in blocks:
        stored, repeated = _stored_and_repeated(block, moved.union(kept))
        used.update(each.signature for each in stored)
        size_bytes += block.count * sum(each.size_bytes for each in stored if each.signature not in moved)
        for operation in repeated:
            repeated_seconds += block.count * operation.seconds
        moved_bytes = block.count * sum(each.size_bytes for each in stored if each.signature in moved)
        offloaded_bytes += moved_bytes
        if moved and host_bandwidth is not None:
            seconds = moved_bytes / host_bandwidth  # in each direction
            waiting_seconds += sum(max(seconds - hidden, 0.0) for hidden in _hidden_seconds(block))
    return Choice(
        kept=frozenset(each for each in used.intersection(kept) if each.primitive != LAYER_INPUT),
        size_bytes=size_bytes,
        repeated_seconds=repeated_seconds,
        offloaded=moved & used,
        offloaded_bytes=offloaded_bytes,
        waiting_seconds=waiting_seconds,
    )


def notable_repeats(blocks: Sequence[Block], checkpoints: Checkpoints) -> Counter[str]:
    """Count the collectives and random numbers that are recomputed with these checkpoints, by primitive."""
    found: Counter[str] = Counter()
    for block in blocks:
        repeated = _stored_and_repeated(block, checkpoints.kept | checkpoints.offloaded)[1]
        if block.num_at_once(checkpoints.group_size) < block.count:
            repeated += _stored_and_repeated(block, ())[1]
        for operation in repeated:
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
        if operation.signature in kept or operation.is_input:
            stored.append(operation)
        else:
            repeated.append(operation)
            needed.update(operation.inputs)
    return stored, repeated


def sizes_of(blocks: Sequence[Block]) -> dict[Signature, int]:
    """Return the total bytes of each signature's results in all blocks."""
    sizes: dict[Signature, int] = defaultdict(int)
    for block in blocks:
        for operation in block.operations:
            sizes[operation.signature] += block.count * operation.size_bytes
    return dict(sizes)
