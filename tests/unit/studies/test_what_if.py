"""The footprint with other buffers, on timelines small enough to add up by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_builder import buffer, report

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import Report
from memprof.analysis.records.timeline import LiveChange, PhaseSpan, Timeline
from memprof.studies.advice.what_if import Instead, amount, changed_at_peak, footprint_without

_BASE, _TEMPS = Category.PARAMS, Category.ACTIVATIONS


def _report(lives: list[tuple[int, int, int]], *, base_bytes: int = 100, fragmentation: int = 0) -> Report:
    """A report of temporaries that are held from one position to another, one change at each position at most."""
    moments = sorted(
        [(first, 1, index) for index, (first, _, _) in enumerate(lives)]
        + [(last + 1, 0, index) for index, (_, last, _) in enumerate(lives)]
    )
    places: list[list[int]] = [[] for _ in lives]
    changes = []
    for place, (position, is_birth, index) in enumerate(moments):
        size_bytes = lives[index][2]
        changes.append(LiveChange(position, _TEMPS, size_bytes if is_birth else -size_bytes))
        places[index].append(place)
    temps = [
        replace(
            buffer((size_bytes,), "u8", _TEMPS, op=f"step/{index}"),
            start=first,
            end=last,
        )
        for index, (first, last, size_bytes) in enumerate(lives)
    ]
    live = peak = base_bytes
    for change in changes:
        live += change.delta_bytes
        peak = max(peak, live)
    end = max((last for _, last, _ in lives), default=0) + 1
    timeline = Timeline(
        num_positions=end + 1,
        base={_BASE: base_bytes},
        changes=tuple(changes),
        temp_changes=tuple((born, died) for born, died in places),
        phases=(PhaseSpan(phase=Phase.FORWARD, start=0, end=end),),
        peak_position=0,
    )
    made = report([buffer((base_bytes,), "u8", _BASE, op="params")], timeline=timeline)
    return replace(
        made, temp_buffers=tuple(temps), live_peak_bytes=peak, footprint_bytes=peak + fragmentation
    )  # fmt: skip


def _only(op: str, instead: Instead):  # type: ignore[no-untyped-def]
    return lambda found: instead if found.op == op else None


# Live bytes by position: 110, 140, 130, 120
_LIVES = [(0, 1, 10), (1, 2, 30), (3, 3, 20)]


@pytest.mark.parametrize(
    ("op", "instead", "footprint_bytes"),
    [
        ("step/1", Instead(size_bytes=30), 145),  # as it was: 100 + 10 + 30, and 5 of fragmentation
        ("step/1", Instead(size_bytes=0), 125),  # the peak moves to position 3: 100 + 20 + 5
        ("step/1", Instead(size_bytes=15), 130),  # 100 + 10 + 15 + 5
        ("step/1", Instead(size_bytes=30, spans=[(2, 2)]), 135),  # no longer beside the first: 100 + 30 + 5
        ("step/1", Instead(size_bytes=30, spans=[(2, 3)]), 155),  # but now beside the last: 100 + 30 + 20 + 5
        ("step/1", Instead(size_bytes=0, kept_bytes=12), 127),  # 100 + 10 + 12 + 5
        ("params", Instead(size_bytes=40), 85),  # 40 + 10 + 30 + 5
        ("params", Instead(size_bytes=100, spans=[(3, 3)]), 125),  # at position 3 with the last: 100 + 20 + 5
    ],
)
def test_the_peak_moves_with_the_buffers(op: str, instead: Instead, footprint_bytes: int) -> None:
    assert footprint_without(_report(_LIVES, fragmentation=5), _only(op, instead)) == footprint_bytes


def test_a_packed_block_has_no_fragmentation() -> None:
    assert footprint_without(_report(_LIVES, fragmentation=5), lambda buffer: None, is_packed=True) == 140


def test_the_evidence_is_what_changes_at_the_peak() -> None:
    made = report([buffer((64,), "f32", _TEMPS, op="kept"), buffer((32,), "f32", _TEMPS, op="gone")])
    found = changed_at_peak(made, _only("gone", Instead(size_bytes=0)))
    assert [each.op for each in found] == ["gone"]
    assert amount(found, "results") == "1 result (128 bytes)"
    assert amount(made.buffers * 2, "results") == "4 results (768 bytes)"
    assert amount((), "results") == "0 results (0 bytes)"


_lives = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 100)).map(
        lambda life: (min(life[:2]), max(life[:2]), life[2])
    ),
    max_size=12,
)


@given(lives=_lives, fragmentation=st.integers(0, 50))
def test_nothing_changed_is_the_footprint(lives: list[tuple[int, int, int]], fragmentation: int) -> None:
    made = _report(lives, fragmentation=fragmentation)
    assert footprint_without(made, lambda buffer: None) == made.footprint_bytes


@given(lives=_lives, gone=st.sets(st.integers(0, 11)), shares=st.lists(st.floats(0, 1), min_size=12, max_size=12))
def test_what_shrinks_never_costs(lives: list[tuple[int, int, int]], gone: set[int], shares: list[float]) -> None:
    made = _report(lives)

    def without(found: LiveBuffer) -> Instead | None:
        index = int(found.op.removeprefix("step/")) if found.op.startswith("step/") else -1
        return Instead(size_bytes=int(found.size_bytes * shares[index])) if index in gone else None

    shrunk_bytes = sum(size for index, (_, _, size) in enumerate(lives) if index in gone)
    assert made.footprint_bytes - shrunk_bytes <= footprint_without(made, without) <= made.footprint_bytes
