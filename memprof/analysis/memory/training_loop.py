"""The allocations of a training loop, piece by piece, and whether the pool can serve them.

    for batch in batches:
        state, loss = step(state, batch)

The state is allocated first, then a batch. Each step allocates its results and its temp block, each as one piece, and
frees the temp block at its end. The old state and the old results are freed after the new ones are allocated. So is the
old batch, which is still held while the next one is allocated. Even if the sum of the pieces fits, a piece may not:
the holes left by older arrays can be too small for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from memprof.analysis.hlo.buffer_table import BufferTable
from memprof.analysis.memory.best_fit import ALIGNMENT_BYTES, BestFitPool, OutOfPoolError, rounded
from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Role
from memprof.analysis.records.pool import Pieces

_NUM_STEPS = 4  # after this, new arrays reuse the addresses of the arrays from two steps before


def pieces_of(table: BufferTable, arguments: Iterable[ArgumentLeaf]) -> Pieces:
    """Return the pieces of a compiled step on one device.

    A result replaces an argument of the same size that the step does not overwrite, except arguments of the batch.
    """
    batch_numbers = {leaf.parameter_number for leaf in arguments if leaf.role is Role.BATCH}
    held, batch, results, temps = list[int](), list[int](), list[int](), list[int]()
    unwritten = Counter[int]()
    for each in table.device_allocations:
        if not each.size_bytes:
            continue
        if each.parameter_number in batch_numbers and each.parameter_number is not None:
            batch.append(each.size_bytes)
        elif each.parameter_number is not None and not each.is_live_out:
            unwritten[each.size_bytes] += 1
        elif each.parameter_number is not None or each.is_constant:
            held.append(each.size_bytes)
        else:
            (temps if each.is_temp else results).append(each.size_bytes)
    replaced = tuple((Counter(results) & unwritten).elements())
    others = (Counter(results) - unwritten).elements()
    return Pieces(
        held=(*held, *(unwritten - Counter(replaced)).elements()),
        replaced=replaced,
        batch=tuple(batch),
        results=(*replaced, *others),
        temps=tuple(temps),
    )


def fits_in_pool(pieces: Pieces, pool_bytes: int, *, grows: bool) -> bool:
    """Whether all pieces of a training loop fit in a pool.

    Args:
        grows: whether the pool is allocated region by region instead of at once.
    """
    try:
        _run(pieces, BestFitPool(pool_bytes, grows=grows))
    except OutOfPoolError:
        return False
    return True


def missing_bytes(pieces: Pieces, pool_bytes: int, *, grows: bool) -> int:
    """Return the bytes by which a pool is too small for the pieces, to 256 bytes; 0 if it holds them."""
    if fits_in_pool(pieces, pool_bytes, grows=grows):
        return 0
    too_small, enough = pool_bytes, pool_bytes + ALIGNMENT_BYTES
    while not fits_in_pool(pieces, enough, grows=grows):
        too_small, enough = enough, pool_bytes + 2 * (enough - pool_bytes)
    while enough - too_small > ALIGNMENT_BYTES:
        middle = too_small + rounded((enough - too_small) // 2)
        if fits_in_pool(pieces, middle, grows=grows):
            enough = middle
        else:
            too_small = middle
    return enough - pool_bytes


def _run(pieces: Pieces, pool: BestFitPool) -> None:
    """Run some steps of the loop.

    Raises:
        OutOfPoolError: a piece does not fit.
    """

    def take(sizes: Sequence[int]) -> list[int]:
        return [pool.take(size) for size in sizes]

    def free(addresses: Sequence[int]) -> None:
        for address in addresses:
            pool.free(address)

    take(pieces.held)
    state, batch, others = take(pieces.replaced), take(pieces.batch), list[int]()
    for number in range(_NUM_STEPS):
        if number:
            following = take(pieces.batch)
            free(batch)
            batch = following
        results = take(pieces.results)
        free(take(pieces.temps))
        free(state)
        free(others)
        state, others = results[: len(state)], results[len(state) :]
