"""The prediction of a footprint: which compile corrects an estimate, and which order of the operations counts."""

from __future__ import annotations

from memprof.analysis.records.checkpoints import Checkpoints, Signature
from memprof.studies.plan.predictions import Compiled, predicted_bytes

_UP, _DOWN, _NORM = (Signature(name, (), "None") for name in ("up", "down", "norm"))
_SIZES = {_UP: 400, _DOWN: 200, _NORM: 100}


def _kept(*names: Signature, num_first: int | None = None, rest: frozenset[Signature] | None = None) -> Checkpoints:
    return Checkpoints(kept=frozenset(names), num_first=num_first, kept_by_rest=rest)


def _compiled(checkpoints: Checkpoints | None, footprint_bytes: int, *peaks: int) -> Compiled:
    return Compiled(checkpoints=checkpoints, footprint_bytes=footprint_bytes, peaks=peaks)


def _predicted(checkpoints: Checkpoints, peaks: tuple[int, ...], *compiled: Compiled) -> int:
    return predicted_bytes(checkpoints, peaks, compiled, sizes=_SIZES, everything=_SIZES, num_blocks=4)


def test_the_compile_that_keeps_the_most_similar_values_corrects_the_estimate() -> None:
    nothing, up = _compiled(_kept(), 1000, 300), _compiled(_kept(_UP), 1500, 750)
    assert _predicted(_kept(_NORM), (400,), nothing, up) == 400 + 700
    assert _predicted(_kept(_UP, _NORM), (860,), nothing, up) == 860 + 750


def test_a_step_without_checkpoints_is_the_last_to_correct() -> None:
    """It keeps all 700 bytes, as the prediction does. But 30% come on top: 210, more than the 200 of the other."""
    as_it_is, up_and_down = _compiled(None, 2000, 700), _compiled(_kept(_UP, _NORM), 1500, 500)
    assert _predicted(_kept(_UP, _DOWN), (600,), as_it_is) == 600 + 1300
    assert _predicted(_kept(_UP, _DOWN, _NORM), (700,), as_it_is, up_and_down) == 700 + 1000


def test_layers_of_a_mixture_count_by_their_number() -> None:
    """One of four layers keeps all, so the mixture is nearer to nothing kept."""
    nothing, everything = _compiled(_kept(), 1000, 300), _compiled(_kept(_UP, _DOWN, _NORM), 2000, 1200)
    assert _predicted(_kept(num_first=3), (500,), nothing, everything) == 500 + 700
    assert _predicted(_kept(num_first=1), (500,), nothing, everything) == 500 + 800
    rest = frozenset({_UP, _DOWN, _NORM})
    assert _predicted(_kept(num_first=1, rest=rest), (500,), nothing, everything) == 500 + 800


def test_between_the_step_without_checkpoints_and_another_the_difference_is_interpolated() -> None:
    """Of 700 bytes 600 are kept: 100 and 210 from the step without checkpoints, 600 from nothing kept."""
    as_it_is, nothing = _compiled(None, 2000, 700), _compiled(_kept(), 1000, 300)
    assert _predicted(_kept(_UP, _DOWN), (600,), as_it_is, nothing) == round(600 + (600 * 1300 + 310 * 700) / 910)
    # Nearer to nothing kept, its difference alone counts.
    assert _predicted(_kept(_DOWN), (400,), as_it_is, nothing) == 400 + 700


def test_the_order_whose_estimates_agree_with_the_compiles_counts() -> None:
    """The first order is 700 and 400 off, the second 500 each time."""
    as_it_is, nothing = _compiled(None, 1500, 800, 1000), _compiled(_kept(), 1000, 600, 500)
    assert _predicted(_kept(_NORM), (700, 800), as_it_is, nothing) == 800 + 500
