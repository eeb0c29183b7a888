"""The prediction of a footprint: which compiles correct an estimate, and how much each estimate counts."""

from __future__ import annotations

from memprof.analysis.records.checkpoints import Checkpoints, Signature
from memprof.studies.plan.predictions import Compiled, predicted_bytes

_UP, _DOWN, _NORM = (Signature(name, (), "None") for name in ("up", "down", "norm"))
_SIZES = {_UP: 400, _DOWN: 200, _NORM: 100}


def _kept(*names: Signature, num_first: int | None = None, rest: frozenset[Signature] | None = None) -> Checkpoints:
    return Checkpoints(kept=frozenset(names), num_first=num_first, kept_by_rest=rest)


def _compiled(checkpoints: Checkpoints | None, footprint_bytes: int, *peaks: int) -> Compiled:
    return Compiled(checkpoints=checkpoints, footprint_bytes=footprint_bytes, peaks=peaks)


def _predicted(checkpoints: Checkpoints, peaks: tuple[int, ...], *compiled: Compiled, around_bytes: int = 0) -> int:
    return predicted_bytes(
        checkpoints, peaks, compiled, around_bytes=around_bytes, sizes=_SIZES, everything=_SIZES, num_blocks=4
    )


def _mean(*differences: tuple[int, int]) -> float:
    """Return the mean of differences, each with the bytes that are kept differently."""
    weights = [apart**-2 for _, apart in differences]
    return sum(weight * each for weight, (each, _) in zip(weights, differences, strict=True)) / sum(weights)


def test_the_compile_that_keeps_the_same_values_corrects_the_estimate() -> None:
    down, up = _compiled(_kept(_DOWN), 1000, 300), _compiled(_kept(_UP), 1500, 750)
    assert _predicted(_kept(_DOWN), (400,), down, up) == 400 + 700
    assert _predicted(_kept(_UP), (860,), down, up) == 860 + 750


def test_compiles_count_by_the_inverse_square_of_the_bytes_that_are_kept_differently() -> None:
    """The norm, 100, is missing from the first; the second has 200 more. So the first counts four times."""
    up, everything = _compiled(_kept(_UP), 1500, 750), _compiled(_kept(_UP, _DOWN, _NORM), 1700, 900)
    assert _predicted(_kept(_UP, _NORM), (860,), up, everything) == 860 + (4 * 750 + 800) / 5


def test_a_step_without_checkpoints_and_one_that_keeps_nothing_count_less() -> None:
    """60% of all 700 bytes, 420, are added to what is kept differently: 100 from the first, 600 from the second.

    If nothing is kept differently, nothing is added.
    """
    as_it_is, nothing = _compiled(None, 2000, 700), _compiled(_kept(), 1000, 300)
    assert _predicted(_kept(_UP, _DOWN, _NORM), (600,), as_it_is) == 600 + 1300
    assert _predicted(_kept(_UP, _DOWN, _NORM), (600,), as_it_is, nothing) == 600 + 1300
    assert _predicted(_kept(_UP, _DOWN), (600,), as_it_is, nothing) == round(600 + _mean((1300, 520), (700, 1020)))
    up = _compiled(_kept(_UP), 1500, 750)
    assert _predicted(_kept(_NORM), (600,), nothing, up) == round(600 + _mean((700, 520), (750, 500)))


def test_no_footprint_is_below_the_arguments_and_results() -> None:
    """An estimate of the unchanged step that is 900 too large would make another one negative."""
    as_it_is = _compiled(None, 1000, 1900)
    assert _predicted(_kept(), (500,), as_it_is, around_bytes=150) == 150


def test_layers_of_a_mixture_count_by_their_number() -> None:
    """Three of four layers keep nothing, so a quarter of all 700 bytes is kept; then three quarters."""
    nothing, everything = _compiled(_kept(), 1000, 300), _compiled(_kept(_UP, _DOWN, _NORM), 2000, 1200)
    assert _predicted(_kept(num_first=3), (500,), nothing, everything) == round(500 + _mean((700, 595), (800, 525)))
    assert _predicted(_kept(num_first=1), (500,), nothing, everything) == round(500 + _mean((700, 945), (800, 175)))
    rest = frozenset({_UP, _DOWN, _NORM})
    with_rest = _kept(num_first=1, rest=rest)
    assert _predicted(with_rest, (500,), nothing, everything) == round(500 + _mean((700, 945), (800, 175)))


def test_estimates_count_by_the_inverse_variance_of_their_differences() -> None:
    """The differences are 500 and 500, and 500 and 800, with 500 around the step; the noise is 2% of 1000."""
    down, up = _compiled(_kept(_DOWN), 1000, 500, 500), _compiled(_kept(_UP), 1500, 1000, 700)
    first, second = 1 / 20**2, 1 / (20_000 + 20**2)  # the variance of 500, 800 and 500 is 20,000
    predicted = (first * (600 + 500) + second * (900 + 500)) / (first + second)
    assert _predicted(_kept(_DOWN), (600, 900), down, up, around_bytes=500) == round(predicted)


def test_an_estimate_whose_differences_are_unlike_the_arguments_and_results_counts_less() -> None:
    """The difference of the first is the 500 around the step. That of the second is 100: a variance of 200²."""
    compiled = _compiled(None, 1000, 500, 900)
    first, second = 1 / 20**2, 1 / (200**2 + 20**2)
    predicted = (first * (600 + 500) + second * (800 + 100)) / (first + second)
    assert _predicted(_kept(), (600, 800), compiled, around_bytes=500) == round(predicted)


def test_one_group_of_iterations_at_a_time_keeps_its_results() -> None:
    """One of four iterations in a group: a quarter of all 700 bytes, so 175 from nothing, and 525 from everything.

    Both compiles are extremes: no checkpoint, and nothing kept. So 420 bytes are added to each.
    """
    as_it_is, nothing = _compiled(None, 2000, 1200), _compiled(_kept(), 1000, 300)
    grouped = Checkpoints(kept=frozenset(_SIZES), group_size=1)
    assert _predicted(grouped, (500,), as_it_is, nothing) == round(500 + _mean((800, 525 + 420), (700, 175 + 420)))
    assert _predicted(Checkpoints(kept=frozenset(), group_size=2), (500,), as_it_is, nothing) == 500 + 700
