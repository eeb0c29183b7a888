"""What decoding and analysis leave to Python's garbage collector."""

from __future__ import annotations

import gc

from added_up_step import added_up_step

from memprof.analysis.hlo.decoded import decode, keep_decoded, no_garbage_collection, take_decoded
from memprof.analysis.hlo.hlo_proto import parse_proto


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


def test_rows_that_compile_at_the_same_time_do_not_take_each_others_programs() -> None:
    proto = parse_proto(added_up_step().proto().SerializeToString())
    rows = [bytes(bytearray(proto.SerializeToString())) for _ in range(3)]
    kept = [decode(proto, "cuda") for _ in rows]
    for data, (program, table) in zip(rows, kept, strict=True):
        keep_decoded(data, program, table)
    taken = [take_decoded(data, "cuda")[0] for data in reversed(rows)]
    assert all(one is program for one, (program, _) in zip(taken, reversed(kept), strict=True))
    assert all(take_decoded(data, "cuda")[0] is not program for data, (program, _) in zip(rows, kept, strict=True))


def test_programs_that_nobody_asks_for_are_let_go() -> None:
    proto = parse_proto(added_up_step().proto().SerializeToString())
    rows = [bytes(bytearray(proto.SerializeToString())) for _ in range(10)]
    program, table = decode(proto, "cuda")
    for data in rows:
        keep_decoded(data, program, table)
    assert [take_decoded(data, "cuda")[0] is program for data in rows] == [False] * 6 + [True] * 4
