"""What decoding and analysis leave to Python's garbage collector."""

from __future__ import annotations

import gc

from memprof.analysis.hlo.decoded import no_garbage_collection


def test_what_is_made_without_garbage_collection_is_not_gone_through_at_its_end() -> None:
    collections: list[str] = []

    def note(phase: str, _: dict[str, int]) -> None:
        collections.append(phase)

    with no_garbage_collection():
        gc.callbacks.append(note)
        made = [[number] for number in range(10_000)]
    after = [[number] for number in range(10)]
    gc.callbacks.remove(note)
    assert gc.isenabled()
    assert (len(made), len(after), collections) == (10_000, 10, [])


def test_what_the_caller_has_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        with no_garbage_collection():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
