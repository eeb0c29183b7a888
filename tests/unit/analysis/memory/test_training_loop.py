"""What a training loop asks of the pool: the pieces of a program, and loops that fit by their sum alone."""

from __future__ import annotations

from hlo import Step
from hlo_nodes import f32

from memprof.analysis.memory.training_loop import fits_in_pool, missing_bytes
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Role
from memprof.analysis.records.pool import Pieces

KIB = 1 << 10


def _kib(*sizes: int) -> tuple[int, ...]:
    return tuple(size * KIB for size in sizes)


def test_the_temp_block_finds_no_place_between_old_and_new_batch() -> None:
    # State 40, batch 10, temp block 45: 95 of 100 KiB. The first batch lies behind the state, and the second one behind
    # the first, which is still held. Then 10 KiB are free before it and 40 behind it, and the temp block needs 45.
    loop = Pieces(held=_kib(40), batch=_kib(10), temps=_kib(45))
    assert loop.footprint_bytes == 95 * KIB
    assert not fits_in_pool(loop, 100 * KIB, grows=False)
    # State, two batches and the temp block: 105 KiB.
    assert missing_bytes(loop, 100 * KIB, grows=False) == 5 * KIB
    assert fits_in_pool(loop, 105 * KIB, grows=False)


def test_without_a_batch_the_sum_is_enough() -> None:
    loop = Pieces(held=_kib(40), temps=_kib(45))
    assert fits_in_pool(loop, 85 * KIB, grows=False)
    assert not fits_in_pool(loop, 85 * KIB - 1, grows=False)


def test_state_that_is_not_donated_moves_from_place_to_place() -> None:
    # Old and new state of 30 KiB each, and a temp block of 30: 90 KiB. A new state takes the place of the one before.
    loop = Pieces(replaced=_kib(10, 20), results=_kib(10, 20), temps=_kib(30))
    assert fits_in_pool(loop, 90 * KIB, grows=False)
    assert missing_bytes(loop, 89 * KIB, grows=False) == KIB


def test_results_that_replace_nothing_are_held_until_the_next_ones_are_there() -> None:
    # An evaluation: 20 GiB of results beside the 20 of the step before, and a temp block of 10.
    gib = 1 << 30
    loop = Pieces(held=(10 * gib,), results=(20 * gib,), temps=(10 * gib,))
    assert loop.footprint_bytes == 40 * gib
    assert missing_bytes(loop, 40 * gib, grows=False) == 20 * gib


def test_small_chunks_are_not_split_and_waste_memory() -> None:
    # The same in KiB: of 60 KiB, 30 are free when the second results come, and those of 20 keep all of them.
    loop = Pieces(held=_kib(10), results=_kib(20), temps=_kib(10))
    assert missing_bytes(loop, 40 * KIB, grows=False) == 30 * KIB


def test_sizes_are_rounded_to_256_bytes() -> None:
    loop = Pieces(held=(1, 1, 1))
    assert not fits_in_pool(loop, 767, grows=False)
    assert fits_in_pool(loop, 768, grows=False)


def test_a_pool_that_grows_needs_room_for_its_regions() -> None:
    mib = 1 << 20
    loop = Pieces(held=(3 * mib,), temps=(12 * mib,))
    assert fits_in_pool(loop, 15 * mib, grows=False)
    # Regions of 4 MiB for the state and of 12, all that is left of 16, for the temp block.
    assert missing_bytes(loop, 15 * mib, grows=True) == mib


def test_the_pieces_of_a_program_are_its_allocations() -> None:
    step = Step()
    weights = step.argument("params['w']", Role.PARAMS, f32(64))
    batch = step.argument("batch['x']", Role.BATCH, f32(32))
    hidden = step.op("hidden", "add", f32(64), [weights, batch], "jit(step)/add")
    step.result(step.op("new", "multiply", f32(64), [hidden, weights], "jit(step)/mul"))
    report = analyze(step.capture())
    # Nothing is donated: the weights of 256 bytes are replaced by the result.
    assert (report.pieces.held, report.pieces.replaced, report.pieces.batch) == ((), (256,), (128,))
    assert report.pieces.results == (256,)
    assert report.pieces.footprint_bytes == report.footprint_bytes


def test_the_first_step_holds_one_batch_and_each_later_one_two() -> None:
    # Batches of 30 GiB and results of 20, in a pool of 80: batch 0 at 0, results 0 at 30; batch 1 at 50, results 1 at
    # 0; batch 2 at 20, results 2 at 50. Then 20 GiB are free at 0 and 10 at 70, so batch 3 finds no place, nor does it
    # in a pool of 90. With one batch at a time, 80 would do.
    gib = 1 << 30
    loop = Pieces(batch=(30 * gib,), results=(20 * gib,))
    assert missing_bytes(loop, 70 * gib, grows=False) == 30 * gib
