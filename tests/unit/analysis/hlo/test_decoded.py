"""Programs are decoded once; what decoding and analysis leave to Python's garbage collector."""

from __future__ import annotations

import gc

import pytest
from pressed_plans import plan, pressed

from memprof.analysis import pipeline
from memprof.analysis.hlo.decoded import decode_capture, no_garbage_collection
from memprof.analysis.pipeline import analyze


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


def test_a_report_decodes_nothing_that_its_compile_has_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = pressed("first.remat")
    decoded, of_its_bytes = decode_capture(capture), analyze(capture)
    monkeypatch.setattr(pipeline, "decode_capture", pytest.fail)
    report = analyze(capture, decoded)
    assert report.without_limit is not None
    assert report.without_limit.buffers == analyze(plan(), decoded.without_limit).buffers
    assert (report.buffers, report.pressure) == (of_its_bytes.buffers, of_its_bytes.pressure)
