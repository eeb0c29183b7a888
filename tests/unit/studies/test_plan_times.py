"""The estimate of a step's time: what recomputation and keeping take, from bounds of compiles."""

from __future__ import annotations

import pytest

from memprof.analysis.records.checkpoints import Checkpoints, Signature
from memprof.studies.plan.choice import Choice
from memprof.studies.plan.plan import AS_IT_IS, CHOSEN, NOTHING_KEPT, PlanPoint
from memprof.studies.plan.times import StepTime, step_time

_BANDWIDTH = 10.0  # bytes per second
_NOTHING = Checkpoints(kept=frozenset())
_INPUT = Signature("layer_input", (((4,), "float32"),), "None")


def _point(
    name: str, kept_bytes: int, repeated_seconds: float, bound: float | None, checkpoints: Checkpoints | None = _NOTHING
) -> PlanPoint:
    return PlanPoint(
        name=name,
        checkpoints=checkpoints,
        kept_bytes=kept_bytes,
        repeated_seconds=repeated_seconds,
        footprint_bytes=0,
        recomputed_flops=0,
        at_least_seconds=bound,
    )


def _choice(size_bytes: int, repeated_seconds: float) -> Choice:
    return Choice(kept=frozenset(), size_bytes=size_bytes, repeated_seconds=repeated_seconds)


def test_the_compiles_tell_what_keeping_a_byte_takes() -> None:
    unchanged = _point(AS_IT_IS, 100, 0.0, 60.0, None)
    nothing = _point(NOTHING_KEPT, 0, 10.0, 30.0)
    # Without recomputation the step that keeps nothing takes 30 - 10 = 20 s; keeping 100 bytes, 40 s more: 0.4 s each.
    found = step_time([unchanged, nothing], _BANDWIDTH, is_loop=True)
    assert found == StepTime(base_seconds=20.0, recomputation=2.0, seconds_per_byte=0.4)
    assert found.of(_choice(50, 4.0)) == 48.0  # 20 + 2 * 4 + 0.4 * 50
    assert found.of_point(nothing) == 40.0  # 30, and the recomputation once more
    # A third compile keeps 50 bytes, which take 30 s: (100 * 40 + 50 * 30) / (100^2 + 50^2) = 0.44
    third = step_time([unchanged, nothing, _point(CHOSEN, 50, 4.0, 54.0)], _BANDWIDTH, is_loop=True)
    assert third.seconds_per_byte == pytest.approx(0.44)


def test_a_stored_byte_is_written_and_read() -> None:
    """XLA duplicates operations in the unchanged step, so that its bound can be below that of any checkpoints."""
    unchanged = _point(AS_IT_IS, 100, 0.0, 5.0, None)
    found = step_time([unchanged, _point(NOTHING_KEPT, 0, 10.0, 30.0)], _BANDWIDTH, is_loop=True)
    assert found.seconds_per_byte == 0.2  # 2 / 10
    assert found.of_point(unchanged) == 5.0  # the bound: it does not store all 100 bytes


@pytest.mark.parametrize(
    "points",
    [
        [_point(AS_IT_IS, 100, 0.0, 60.0, None)],
        [_point(AS_IT_IS, 100, 0.0, None, None), _point(NOTHING_KEPT, 0, 10.0, None)],
    ],
)
def test_without_bounds_only_recomputation_counts(points: list[PlanPoint]) -> None:
    assert step_time(points, _BANDWIDTH, is_loop=True) == StepTime()
    assert step_time(points, _BANDWIDTH, is_loop=True).of(_choice(50, 4.0)) == 4.0
    assert step_time(points, _BANDWIDTH, is_loop=True).of_point(points[0]) == 0.0


def test_offloaded_results_do_not_tell_what_keeping_takes() -> None:
    points = [_point(AS_IT_IS, 100, 0.0, 60.0, None), _point(NOTHING_KEPT, 0, 10.0, 30.0)]
    offloading = _point(CHOSEN, 50, 4.0, 500.0, Checkpoints(kept=frozenset(), offloaded=frozenset({_INPUT})))
    assert step_time([*points, offloading], _BANDWIDTH, is_loop=True) == step_time(points, _BANDWIDTH, is_loop=True)


def test_unrolled_layers_without_checkpoints_do_not_tell_what_storing_takes() -> None:
    points = [_point(AS_IT_IS, 100, 0.0, 60.0, None), _point(NOTHING_KEPT, 0, 10.0, 30.0)]
    assert step_time(points, _BANDWIDTH, is_loop=False).seconds_per_byte == 0.2  # 2 / 10
    points.append(_point(CHOSEN, 50, 4.0, 44.0))  # (44 - 4 - 20) / 50
    assert step_time(points, _BANDWIDTH, is_loop=False).seconds_per_byte == 0.4


def test_a_compile_that_turned_out_slow_is_as_slow_as_its_bound() -> None:
    points = [_point(AS_IT_IS, 100, 0.0, 60.0, None), _point(NOTHING_KEPT, 0, 10.0, 30.0)]
    found = step_time(points, _BANDWIDTH, is_loop=True)
    assert found.of(_choice(10, 4.0)) == 32.0  # 20 + 2 * 4 + 0.4 * 10
    assert found.of_point(_point(CHOSEN, 10, 4.0, 70.0)) == 74.0


def test_offloaded_results_are_stored_too() -> None:
    """Inputs of layers (20 bytes) are stored by the compile that keeps nothing."""
    points = [_point(AS_IT_IS, 120, 0.0, 60.0, None), _point(NOTHING_KEPT, 20, 10.0, 30.0)]
    found = step_time(points, _BANDWIDTH, is_loop=True)
    assert (found.base_bytes, found.seconds_per_byte) == (20, 0.4)
    offloading = Choice(
        kept=frozenset(), size_bytes=0, repeated_seconds=10.0, offloaded=frozenset({_INPUT}), offloaded_bytes=20
    )
    assert found.of(offloading) == 40.0  # as the compile that keeps nothing
