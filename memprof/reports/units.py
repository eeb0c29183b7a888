"""Format numbers for readers. Reports round numbers only here and in `memprof.amounts`, which other rooms use too.

Sizes keep three significant digits. A column of sizes is therefore at most eight characters wide, and rows never wrap.
"""

from __future__ import annotations

from memprof.amounts import format_bytes as format_bytes
from memprof.amounts import scale, three_digits

_COUNT_SUFFIXES = ("", "K", "M", "B", "T", "Q")
_FLOP_PREFIXES = ("", "K", "M", "G", "T", "P", "E", "Z")


def format_signed_bytes(delta_bytes: int) -> str:
    """Format a change of a size: `-6.91 GiB`, `+512 B`, `0 B`."""
    return f"{'-' if delta_bytes < 0 else '+' if delta_bytes else ''}{format_bytes(abs(delta_bytes))}"


def format_exact_bytes(size_bytes: int) -> str:
    """Format a size with all digits, grouped: `21,814,513,664`."""
    return f"{size_bytes:,}"


def format_count(count: int) -> str:
    """Format a count: `950`, `1.5K`, `124.4M`, `65.0B` (thousands, millions, billions)."""
    if count < 1000:
        return str(count)
    value, unit = scale(float(count), base=1000, num_units=len(_COUNT_SUFFIXES), digits=1)
    return f"{value:.1f}{_COUNT_SUFFIXES[unit]}"


def format_flops(flops: int, *, unit: str = "FLOP") -> str:
    """Format a number of floating-point operations (not a rate): `6.53 TFLOP`, or `6.53 T` with an empty unit."""
    if flops < 1000:
        return f"{flops} {unit}".rstrip()
    value, prefix = scale(float(flops), base=1000, num_units=len(_FLOP_PREFIXES))
    return f"{three_digits(value)} {_FLOP_PREFIXES[prefix]}{unit}"


def format_share(part: int, whole: int) -> str:
    """Format a share in percent: `12.3%`. Only zero reads `0%`, and only the whole reads `100%`."""
    if part == 0 or whole == 0:
        return "0%"
    if part == whole:
        return "100%"
    percent = 100 * part / whole
    if percent < 0.1:
        return "<0.1%"
    if 99.9 < percent < 100:
        return ">99.9%"
    return f"{percent:.1f}%"


def format_ratio(ratio: float) -> str:
    """Format a ratio: `0.43x`, `12.8x`, `340x`. A small ratio reads `<0.01x`, never `0.00x`."""
    return "<0.01x" if 0 < ratio < 0.005 else f"{three_digits(ratio)}x"


def format_seconds(seconds: float) -> str:
    """Format a duration: `312 ms` below one second, otherwise `7.2 s`."""
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"


def format_short_seconds(seconds: float) -> str:
    """Format a measured duration with three significant digits: `85.2 µs`, `1.42 ms`, `2.31 s`."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 999.5:
            return f"{three_digits(seconds * factor)} {unit}"
    return f"{three_digits(seconds)} s"


def format_rate(per_second: float) -> str:
    """Format a rate per second: `12.4`, `950`, `1.5K`, `124.4M`."""
    return three_digits(per_second) if per_second < 99.95 else format_count(round(per_second))


def format_fraction(fraction: float) -> str:
    """Format a measured share in percent: `41.3%`. A small share reads `<0.1%`; only zero reads `0.0%`."""
    return "<0.1%" if 0 < fraction < 0.0005 else f"{100 * fraction:.1f}%"


def format_signed_share(delta: int, whole: int) -> str:
    """Format a difference in percent of its reference: `+1.2%`, `-0.3%`, `0%`."""
    if not delta:
        return "0%"
    if not whole:
        return "of nothing"
    percent = abs(100 * delta / whole)
    size = "<0.1" if percent < 0.05 else f"{percent:.1f}" if percent < 999.5 else f"{percent:,.0f}"
    return f"{'-' if delta < 0 else '+'}{size}%"
