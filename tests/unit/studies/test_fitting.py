"""The search for the largest value that fits: its errors, its cost at kinks, and what the result says of the growth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from report_builder import CPU

from memprof.amounts import parse_bytes, parse_share
from memprof.analysis.memory.verdict import judge
from memprof.analysis.records.pool import Pieces, PoolSettings
from memprof.analysis.records.pressure import Pressure
from memprof.errors import MemprofError
from memprof.reports.formats.terminal import lower
from memprof.reports.options import RenderOptions
from memprof.reports.views.fit import fit_document
from memprof.studies.fit.results import FitResult, Recomputing, Trial, recomputing_of
from memprof.studies.fit.search import MAX_VALUE, NothingFitsError, find_largest
from memprof.studies.fit.value import _narrow_recomputing


def _result(*footprints: tuple[int, int]) -> FitResult:
    return FitResult(
        subject="mlp",
        techniques=(),
        target="l4",
        field="batch_size",
        value=1,
        next_value=2,
        step=1,
        step_reason="",
        memory_bytes=1000,
        budget_bytes=940,
        verdict=judge(Pieces(held=(1,)), CPU, PoolSettings()),
        tried=tuple(
            Trial(value=value, footprint_bytes=size, seconds=1.0, needed_bytes=size) for value, size in footprints
        ),
        command="",
    )


def test_nothing_fits_is_told_from_the_smallest_value() -> None:
    with pytest.raises(NothingFitsError, match="not even batch_size=4 fits"):
        find_largest(lambda value: 100 + value, start=8, step=4, budget_bytes=50, field="batch_size")


def test_a_value_that_does_not_matter_is_an_error_after_three_measurements() -> None:
    tried = []

    def measure(value: int) -> int:
        tried.append(value)
        return 100

    with pytest.raises(MemprofError, match=r"does not depend on seed: .* 100 bytes at 8, 16 and 256"):
        find_largest(measure, start=8, step=1, budget_bytes=200, field="seed")
    assert tried == [8, 16, 256]


def test_a_plateau_is_not_mistaken_for_independence() -> None:
    assert find_largest(lambda value: max(100, value), start=8, step=1, budget_bytes=200) == 200


def test_a_footprint_that_never_reaches_the_budget_is_an_error() -> None:
    with pytest.raises(MemprofError, match="every batch_size up to"):
        find_largest(lambda value: value, start=1, step=1, budget_bytes=MAX_VALUE, field="batch_size")


def test_the_largest_value_of_all_is_tried_and_no_larger_one() -> None:
    """Multiples of 3 up to 2**31 - 1 end at 2,147,483,646; a leap is 16 times the value before, at most."""
    tried: list[int] = []

    def measure(value: int) -> int:
        tried.append(value)
        return value

    with pytest.raises(MemprofError, match=r"^every it up to 2,147,483,646 fits; .* 2,147,483,646 of 3,000,000,000 "):
        find_largest(measure, start=3, step=3, budget_bytes=3 * 10**9)
    assert tried == [3, 6, 96, 1536, 24576, 393216, 6291456, 100663296, 1610612736, MAX_VALUE - 1]


@pytest.mark.parametrize(
    ("fixed_bytes", "second"),
    [
        (None, 8),  # nothing known: twice the start
        (40, 8),  # no growth above the fixed part: likewise
        (0, 10),  # 10 per value: (100 - 40) / 10 = 6 further
        (39, 64),  # a quarter per value would lead to 244: 16 times the start at most
    ],
)
def test_the_second_measurement_follows_the_fixed_part(fixed_bytes: int | None, second: int) -> None:
    tried: list[int] = []

    def measure(value: int) -> int:
        tried.append(value)
        return 10 * value

    assert find_largest(measure, start=4, step=1, budget_bytes=100, fixed_bytes=fixed_bytes) == 10
    assert tried[:2] == [4, second]


@pytest.mark.parametrize(
    ("footprint", "start", "step", "budget_bytes", "fixed_bytes", "path"),
    [
        # The start, twice the start, the end of their line, and the next value, which ends the search.
        (lambda value: 100 + 10 * value, 4, 1, 1005, None, [4, 8, 90, 91]),
        (lambda value: 100 + 10 * value, 8, 8, 1005, None, [8, 16, 88, 96]),
        # The line from the fixed part leads to 64, and after a kink the line from there too far, to 113.
        (lambda value: 100 + (10 * value if value < 50 else 500 + 40 * (value - 50)), 4, 1, 2000, 100,
         [4, 64, 113, 85, 86]),
        # A flat part says nothing of the slope, so the steepest one so far limits the next leap: to 128, not to 1,024.
        (lambda value: 1000 + (10 * value if value < 30 else 300 + max(0, 5 * (value - 90))), 4, 1, 3000, None,
         [4, 8, 128, 430, 431]),
        # Lines mislead where the footprint bends all along: after two that do not halve the bracket, it is halved.
        (lambda value: value**2, 2, 1, 50_000, None, [2, 4, 64, 739, 121, 162, 450, 200, 215, 332, 221, 223, 224]),
        (lambda value: 10 * value + (5000 if value >= 777 else 0), 8, 1, 9000, None,
         [8, 16, 256, 900, 618, 719, 767, 833, 782, 770, 773, 777, 774, 775, 776]),
        # From above: the smallest value, then lines. One that halves the bracket (1 to 31, then 16 to 31) is no loss.
        (lambda value: 10 * value**2, 31, 1, 5000, None, [31, 1, 16, 21, 22, 23]),
        # Footprints in steps: a line that ends at a value which fits is confirmed once, then the bracket is halved.
        (lambda value: 100 * (value // 16), 16, 1, 2550, None, [16, 32, 408, 416, 412, 414, 415]),
    ],
)  # fmt: skip
def test_each_measurement_follows_from_those_before(
    footprint: Callable[[int], int], start: int, step: int, budget_bytes: int, fixed_bytes: int | None, path: list[int]
) -> None:
    tried: list[int] = []

    def measure(value: int) -> int:
        tried.append(value)
        return footprint(value)

    found = find_largest(measure, start=start, step=step, budget_bytes=budget_bytes, fixed_bytes=fixed_bytes)
    assert (tried, footprint(found) <= budget_bytes < footprint(found + step)) == (path, True)


def test_a_kink_costs_few_measurements() -> None:
    """Flat up to 1000, steep after it: each line from the left misleads, so that the search has to halve."""
    tried = []

    def measure(value: int) -> int:
        tried.append(value)
        return value + max(0, value - 1000) ** 2

    assert find_largest(measure, start=1, step=1, budget_bytes=2000) == 1031
    assert len(tried) <= 24  # bisection takes 16


# GPT-2 in float32 as compiled (jax 0.10.2), in bytes by batch size; before it the target's memory less 6%, after it the
# answer. Between these values straight lines, and from 0 about what does not grow.
MEASURED = {
    "l4": (
        22_224_139_715,
        {0: 2_000_000_000, 8: 17_605_048_676, 12: 19_450_024_292, 13: 21_312_704_868, 14: 22_722_401_124,
         16: 25_894_259_044, 60: 95_000_000_000},
        13,
    ),
    "a100-40gb": (
        39_791_152_333,
        {0: 2_000_000_000, 8: 23_040_832_612, 16: 32_034_573_156, 22: 33_705_846_628, 26: 39_372_941_924,
         27: 40_772_414_052, 60: 88_000_000_000},
        26,
    ),
    "h100-80gb": (
        79_846_400_328,
        {0: 2_000_000_000, 8: 21_832_876_388, 16: 41_295_594_084, 31: 63_557_769_060, 37: 64_107_868_004,
         43: 68_270_257_764, 47: 74_158_340_452, 50: 79_015_786_852, 51: 80_536_369_508, 120: 185_000_000_000},
        50,
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", MEASURED)
@pytest.mark.parametrize("start", [1, 4, 8, 16])
def test_where_xla_saves_memory_by_itself_six_compiles_do(target: str, start: int) -> None:
    budget_bytes, sizes, answer = MEASURED[target]
    tried = []

    def measure(value: int) -> int:
        tried.append(value)
        right = next(known for known in sizes if known >= value)
        left = max(known for known in sizes if known < value)
        return sizes[left] + (sizes[right] - sizes[left]) * (value - left) // (right - left)

    found = find_largest(measure, start=start, step=1, budget_bytes=budget_bytes, fixed_bytes=sizes[0])
    assert found == answer
    assert len(tried) <= 6


def test_a_bend_and_a_fall_are_said() -> None:
    assert _result((1, 100), (2, 200), (3, 300)).findings() == ()
    (bend,) = _result((2, 200), (1, 100), (4, 300)).findings()  # in whatever order they were tried
    assert bend.startswith("the footprint grows more slowly above batch_size=2: by 50 bytes")
    (fall,) = _result((1, 100), (2, 200), (3, 150)).findings()
    assert "batch_size=3 takes 150 bytes, less than the 200 of batch_size=2" in fall


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("40GiB", 40 * 1024**3), ("2 GB", 2 * 10**9), ("1.5kib", 1536), ("7B", 7), ("0.1 TiB", 109951162777)],
)
def test_amounts_of_memory(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "40", "GiB", "-1GiB", "40 bananas", "0GiB", "1e3GiB", "nan GiB", "0.1B"])
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(MemprofError, match=r"is not a memory size|is zero"):
        parse_bytes(text)


def test_shares() -> None:
    assert [parse_share(text) for text in ("6%", "+2.5%", "6", "-1%")] == [
        pytest.approx(0.06), pytest.approx(0.025), None, None,
    ]  # fmt: skip


def test_it_says_where_xla_begins_to_recompute() -> None:
    pressure = Pressure(
        planned_bytes=900, recomputed_values=2, recomputed_flops=5000, footprint_without_limit_bytes=1000
    )
    result = _result((10, 1000), (8, 800), (9, 900), (12, 1200))
    under_pressure = tuple(
        trial if trial.value < 10 else replace(trial, pressure=pressure, pressed_footprint_bytes=850)
        for trial in result.tried
    )
    pressed = replace(result, tried=under_pressure)
    assert pressed.recomputing == Recomputing(value=9, next_value=10)
    assert pressed.findings() == (
        "XLA begins to recompute between batch_size=9 and 10, which makes steps slower: at 10 it recomputes 2 values"
        " (5,000 FLOPs of matrix products) and takes 850 bytes instead of 1,000",
    )
    assert (result.recomputing, result.findings()) == (None, ())


def test_if_xla_recomputes_at_each_value_it_is_not_known_where_that_begins() -> None:
    pressure = Pressure(planned_bytes=9, recomputed_values=1, recomputed_flops=0, footprint_without_limit_bytes=100)
    result = _result((1, 100), (2, 200))
    pressed = replace(result, tried=tuple(replace(trial, pressure=pressure) for trial in result.tried))
    assert (pressed.recomputing, pressed.findings()) == (None, ())


class _Compiles:
    """Compiles of which those from `first_pressed` on show that XLA recomputes."""

    def __init__(self, *values: int, first_pressed: int) -> None:
        self._first_pressed = first_pressed
        self.trials: list[Trial] = []
        for each in values:
            self.add(each)

    def add(self, value: int) -> None:
        pressure = Pressure(
            planned_bytes=900, recomputed_values=1, recomputed_flops=0, footprint_without_limit_bytes=value
        )
        self.trials.append(
            Trial(
                value=value,
                footprint_bytes=value,
                seconds=1.0,
                needed_bytes=value,
                pressure=pressure if value >= self._first_pressed else None,
            )
        )


@pytest.mark.parametrize(
    ("first_pressed", "step", "found", "num_compiles"),
    [
        (38, 1, (37, 38), 5),  # 10 to 40: 25, 32, 36, 38, 37
        (38, 4, (34, 38), 4),  # 10 to 40: 22, 30, 34, 38
        (41, 1, None, 0),
        (5, 1, None, 0),
    ],
)
def test_it_looks_for_the_value_above_which_xla_recomputes(
    first_pressed: int, step: int, found: tuple[int, int] | None, num_compiles: int
) -> None:
    compiles = _Compiles(10, 40, first_pressed=first_pressed)
    _narrow_recomputing(compiles, step=step)
    expected = None if found is None else Recomputing(value=found[0], next_value=found[1])
    assert recomputing_of(compiles.trials) == expected
    assert len(compiles.trials) == 2 + num_compiles


def test_the_table_has_a_column_for_what_xla_recomputes_if_it_does() -> None:
    pressure = Pressure(planned_bytes=9, recomputed_values=3, recomputed_flops=0, footprint_without_limit_bytes=2000)
    result = _result((1, 1000), (2, 2000))
    plain, second = result.tried
    pressed = replace(result, tried=(plain, replace(second, pressure=pressure, pressed_footprint_bytes=1500)))
    assert "XLA" not in lower(fit_document(result), RenderOptions())
    shown = lower(fit_document(pressed), RenderOptions())
    assert "recomputes" in shown
    assert "3 values" in shown
    assert "1.46 KiB" in shown
