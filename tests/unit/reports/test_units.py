"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memprof.analysis.records.live_buffer import array_type
from memprof.reports.units import (
    format_bytes,
    format_count,
    format_exact_bytes,
    format_flops,
    format_fraction,
    format_rate,
    format_ratio,
    format_seconds,
    format_share,
    format_short_seconds,
    format_signed_bytes,
    format_signed_share,
)

_FACTORS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50, "EiB": 2**60}


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536 * 2**20, "1.50 GiB"),
        (84929347584, "79.1 GiB"),
        (475 * 2**20, "475 MiB"),
        # Rounding carries into the next unit and into the next number of digits.
        (2**20 - 1, "1.00 MiB"),
        (int(9.996 * 2**20), "10.0 MiB"),
        (int(99.96 * 2**20), "100 MiB"),
        (5000 * 2**60, "5000 EiB"),
    ],
)
def test_bytes_keep_three_digits_in_binary_units(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


@given(st.integers(min_value=0, max_value=2**63))
def test_bytes_are_within_half_a_percent_and_eight_characters(size_bytes: int) -> None:
    text = format_bytes(size_bytes)
    number, unit = text.split(" ")

    assert len(text) <= 8
    assert float(number) * _FACTORS[unit] == pytest.approx(size_bytes, rel=0.005)


@given(st.integers(min_value=0, max_value=2**62), st.integers(min_value=0, max_value=2**62))
def test_more_bytes_never_read_as_fewer(one: int, other: int) -> None:
    def value(size_bytes: int) -> float:
        number, unit = format_bytes(size_bytes).split(" ")
        return float(number) * _FACTORS[unit]

    small, large = sorted((one, other))
    assert value(small) <= value(large)


@given(st.integers(min_value=0, max_value=1023))
def test_bytes_below_one_kib_are_exact(size_bytes: int) -> None:
    assert format_bytes(size_bytes) == f"{size_bytes} B"


def test_exact_bytes_are_grouped() -> None:
    assert format_exact_bytes(11931151372) == "11,931,151,372"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1500, "1.5K"), (999_960, "1.0M"), (124_439_808, "124.4M"), (65_000_000_000, "65.0B")],
)
def test_counts_are_in_thousands_and_millions(count: int, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("flops", "text"), [(0, "0 FLOP"), (999, "999 FLOP"), (6_530_000_000_000, "6.53 TFLOP"), (10**21, "1.00 ZFLOP")]
)
def test_flops_are_decimal(flops: int, text: str) -> None:
    assert format_flops(flops) == text
    assert format_flops(flops, unit="") == text.removesuffix("FLOP").rstrip()


@pytest.mark.parametrize(
    ("delta_bytes", "text"), [(0, "0 B"), (512, "+512 B"), (-1536 * 2**20, "-1.50 GiB"), (2**20, "+1.00 MiB")]
)
def test_changes_have_a_sign(delta_bytes: int, text: str) -> None:
    assert format_signed_bytes(delta_bytes) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.0, "0.00x"), (0.001, "<0.01x"), (0.4321, "0.43x"), (1.0, "1.00x"), (12.76, "12.8x"), (340.2, "340x")],
)
def test_ratios(ratio: float, text: str) -> None:
    assert format_ratio(ratio) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "0%"),
        (0, 8, "0%"),
        (8, 8, "100%"),
        (123, 1000, "12.3%"),
        (1, 10_000, "<0.1%"),
        (9_999, 10_000, ">99.9%"),
        (3, 2, "150.0%"),
    ],
)
def test_shares(part: int, whole: int, text: str) -> None:
    assert format_share(part, whole) == text


@given(st.integers(min_value=0, max_value=2**40), st.integers(min_value=1, max_value=2**40))
def test_only_nothing_reads_as_zero_and_only_all_as_hundred_percent(part: int, rest: int) -> None:
    whole = part + rest
    assert (format_share(part, whole) == "0%") == (part == 0)
    assert format_share(part, whole) not in ("100%", "0.0%", "100.0%")


@pytest.mark.parametrize(("seconds", "text"), [(0.0, "0 ms"), (0.312, "312 ms"), (0.9996, "1.0 s"), (7.31, "7.3 s")])
def test_durations(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_array_types_read_as_xla_prints_them() -> None:
    assert array_type("bf16", (8, 1024)) == "bf16[8,1024]"
    assert array_type("s32", ()) == "s32[]"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(8.52e-05, "85.2 µs"), (0.00142, "1.42 ms"), (0.9994, "999 ms"), (0.9996, "1.00 s"), (75, "75.0 s")],
)
def test_a_measured_duration_keeps_three_digits(seconds: float, text: str) -> None:
    assert format_short_seconds(seconds) == text


@pytest.mark.parametrize(("rate", "text"), [(0.5, "0.50"), (12.44, "12.4"), (99.96, "100"), (42_190, "42.2K")])
def test_a_rate(rate: float, text: str) -> None:
    assert format_rate(rate) == text


@pytest.mark.parametrize(("fraction", "text"), [(0, "0.0%"), (0.0001, "<0.1%"), (0.413, "41.3%")])
def test_a_measured_share(fraction: float, text: str) -> None:
    assert format_fraction(fraction) == text


@pytest.mark.parametrize(
    ("delta", "whole", "text"),
    [(0, 7, "0%"), (-1, 1000, "-0.1%"), (1, 10_000, "+<0.1%"), (5, 0, "of nothing"), (50, 1, "+5,000%")],
)
def test_a_difference_in_percent(delta: int, whole: int, text: str) -> None:
    assert format_signed_share(delta, whole) == text


@pytest.mark.parametrize(
    ("text", "below", "at"),
    [
        (format_count, (999, "999"), (1000, "1.0K")),
        (format_count, (999_949, "999.9K"), (999_950, "1.0M")),
        (format_count, (10**15, "1.0Q"), (10**18, "1000.0Q")),  # there is no larger unit
        (format_flops, (999, "999 FLOP"), (1000, "1.00 KFLOP")),
        (format_flops, (9_994, "9.99 KFLOP"), (9_995, "10.0 KFLOP")),
        (format_flops, (999_499, "999 KFLOP"), (999_500, "1.00 MFLOP")),
        (format_flops, (10**21, "1.00 ZFLOP"), (10**24, "1000 ZFLOP")),
        (format_ratio, (0.0, "0.00x"), (1e-9, "<0.01x")),
        (format_ratio, (0.004999, "<0.01x"), (0.005, "0.01x")),
        (format_seconds, (0.9994, "999 ms"), (0.9995, "1.0 s")),
        (format_short_seconds, (999.4e-6, "999 µs"), (999.6e-6, "1.00 ms")),
        (format_short_seconds, (0.9994, "999 ms"), (0.9995, "1.00 s")),
        (format_rate, (99.94, "99.9"), (99.95, "100")),
        (format_rate, (999.4, "999"), (999.6, "1.0K")),
        (format_fraction, (0.0, "0.0%"), (1e-9, "<0.1%")),
        (format_fraction, (0.000499, "<0.1%"), (0.0005, "0.1%")),
        (lambda part: format_share(part, 10**6), (999, "<0.1%"), (1000, "0.1%")),
        (lambda part: format_share(part, 10**6), (999_000, "99.9%"), (999_001, ">99.9%")),
        (lambda part: format_share(part, 10**6), (10**6, "100%"), (1_001_000, "100.1%")),
        (lambda delta: format_signed_share(delta, 10**5), (49, "+<0.1%"), (50, "+0.1%")),
        (lambda delta: format_signed_share(delta, 10**5), (-50, "-0.1%"), (-49, "-<0.1%")),
        (lambda delta: format_signed_share(delta, 10**3), (9_994, "+999.4%"), (9_995, "+1,000%")),
    ],
)
def test_the_text_changes_at_its_limits(
    text: Callable[[float], str], below: tuple[float, str], at: tuple[float, str]
) -> None:
    assert (text(below[0]), text(at[0])) == (below[1], at[1])
