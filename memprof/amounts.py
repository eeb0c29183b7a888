"""Parse amounts of memory (`40GiB`, `2 GB`) and percentages (`6%`) that users write, and format amounts for them."""

from __future__ import annotations

import re
from fractions import Fraction

from memprof.errors import MemprofError

_UNITS = {
    "B": 1,
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGTP", start=1)},
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGTP", start=1)},
}
_UNITS_BY_LOWER_CASE = {unit.lower(): size_bytes for unit, size_bytes in _UNITS.items()}
_NUMBER = r"([0-9]{1,20}(?:\.[0-9]{1,20})?)"
_MAX_BYTES = 1024**6
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def parse_bytes(text: str) -> int:
    """Parse an amount of memory into bytes, rounded down: `40GiB`, `1.5 TiB`, `80GB` (decimal), `1024B`.

    Raises:
        MemprofError: the text is not a positive amount with a unit, or is more than any device has (1024 PiB).
    """
    match = re.fullmatch(rf"{_NUMBER}\s*([A-Za-z]+)", text.strip())
    unit_bytes = _UNITS_BY_LOWER_CASE.get(match.group(2).lower()) if match else None
    if match is None or unit_bytes is None:
        raise MemprofError(
            f"'{text}' is not a memory size: write a number and a unit, for example 40GiB or 512MiB (binary),"
            " 80GB (decimal) or 1024B"
        )
    size_bytes = int(Fraction(match.group(1)) * unit_bytes)
    if not size_bytes:
        raise MemprofError(f"'{text}' is zero; write a size above zero, for example 40GiB")
    if size_bytes > _MAX_BYTES:
        raise MemprofError(f"'{text}' is more than any device has; write a size of at most {_MAX_BYTES // 1024**5} PiB")
    return size_bytes


def parse_share(text: str) -> Fraction | None:
    """Parse a percentage (`6%`, `+2.5%`) into a fraction; None if the text is not a percentage."""
    match = re.fullmatch(rf"\+?{_NUMBER}\s*%", text.strip())
    return Fraction(match.group(1)) / 100 if match else None


def format_bytes(size_bytes: int) -> str:
    """Format a size in binary units: `0 B`, `1023 B`, `1.50 KiB`, `79.1 GiB`. Exact below 1 KiB."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    value, unit = scale(float(size_bytes), base=1024, num_units=len(_BYTE_UNITS))
    return f"{three_digits(value)} {_BYTE_UNITS[unit]}"


def scale(value: float, *, base: int, num_units: int, digits: int = 0) -> tuple[float, int]:
    """Divide a value by `base` until it rounds to less than `base`, at most `num_units - 1` times.

    Args:
        value: the value to scale.
        base: the ratio of two neighbouring units, for example 1024.
        num_units: the number of available units.
        digits: decimal digits kept in the rounding.

    Returns:
        The scaled value, and the number of divisions: the index of its unit.
    """
    unit = 0
    while round(value, digits) >= base and unit < num_units - 1:
        value /= base
        unit += 1
    return value, unit


def three_digits(value: float) -> str:
    """Format a number with three significant digits, at most two decimals and all integer digits: `1.50`, `1023`."""
    for limit, digits in ((9.995, 2), (99.95, 1)):
        if value < limit:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"
