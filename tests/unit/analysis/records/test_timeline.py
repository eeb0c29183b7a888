"""Columns of a timeline."""

from __future__ import annotations

import pytest

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.timeline import LiveChange, PhaseSpan, Timeline, TimelineSlice

_ACTIVATIONS, _GRADIENTS, _PARAMS = Category.ACTIVATIONS, Category.GRADIENTS, Category.PARAMS

# Live bytes by position: 105, 125, 125, 100 (after 125), 130, 100 (after 130)
_TIMELINE = Timeline(
    num_positions=6,
    base={_PARAMS: 100},
    changes=(
        LiveChange(0, _ACTIVATIONS, 5),
        LiveChange(1, _ACTIVATIONS, 20),
        LiveChange(3, _ACTIVATIONS, -25),
        LiveChange(4, _GRADIENTS, 30),
        LiveChange(5, _GRADIENTS, -30),
    ),
    phases=(PhaseSpan(phase=Phase.FORWARD, start=0, end=2), PhaseSpan(phase=Phase.BACKWARD, start=3, end=5)),
    peak_position=4,
)


def _slice(position: int, phase: Phase, **categories: int) -> TimelineSlice:
    return TimelineSlice(
        position=position, phase=phase, categories={Category(name): n for name, n in categories.items()}
    )


def test_a_column_is_the_highest_moment_of_its_slice() -> None:
    assert _TIMELINE.slices(2) == (
        _slice(1, Phase.FORWARD, params=100, activations=25),
        _slice(4, Phase.BACKWARD, params=100, gradients=30),
    )


def test_a_column_per_position_shows_what_is_live_there() -> None:
    assert _TIMELINE.slices(6) == (
        _slice(0, Phase.FORWARD, params=100, activations=5),
        _slice(1, Phase.FORWARD, params=100, activations=25),
        _slice(2, Phase.FORWARD, params=100, activations=25),
        _slice(3, Phase.BACKWARD, params=100, activations=25),  # before they die
        _slice(4, Phase.BACKWARD, params=100, gradients=30),
        _slice(5, Phase.BACKWARD, params=100, gradients=30),
    )


def test_a_program_shorter_than_the_picture_has_a_column_per_position() -> None:
    assert _TIMELINE.slices(80) == _TIMELINE.slices(6)


@pytest.mark.parametrize("num_columns", range(1, 10))
def test_the_highest_slice_is_the_peak_whatever_their_number(num_columns: int) -> None:
    slices = _TIMELINE.slices(num_columns)
    assert max(slice_.live_bytes for slice_ in slices) == 130
    assert len(slices) == min(num_columns, 6)


def test_a_moment_within_one_position_counts() -> None:
    changes = (LiveChange(0, _GRADIENTS, 7), LiveChange(0, _GRADIENTS, -7), LiveChange(0, _ACTIVATIONS, 3))
    timeline = Timeline(num_positions=1, base={}, changes=changes, phases=(), peak_position=0)
    assert timeline.slices(1) == (_slice(0, Phase.NONE, gradients=7),)


def test_of_equal_moments_the_first_counts() -> None:
    changes = (LiveChange(1, _GRADIENTS, 7), LiveChange(2, _GRADIENTS, -7), LiveChange(3, _ACTIVATIONS, 7))
    timeline = Timeline(num_positions=4, base={}, changes=changes, phases=(), peak_position=1)
    assert timeline.slices(1) == (_slice(1, Phase.NONE, gradients=7),)


def test_an_empty_program_has_no_columns() -> None:
    timeline = Timeline(num_positions=0, base={_PARAMS: 100}, changes=(), phases=(), peak_position=0)
    assert timeline.slices(80) == ()


def test_each_position_has_the_phase_of_its_span() -> None:
    assert [_TIMELINE.phase_at(position) for position in (0, 2, 3, 5, 6)] == [
        Phase.FORWARD,
        Phase.FORWARD,
        Phase.BACKWARD,
        Phase.BACKWARD,
        Phase.NONE,
    ]
