"""The argument of both kinds of pruning: which part goes."""

from __future__ import annotations

from typing import Final

from memprof.workloads.checks import require

FRACTION: Final = r"[0-9]*\.?[0-9]+"


def parse_fraction(text: str) -> float:
    """Returns the number; raises `MemprofError` unless it is above 0 and below 1."""
    fraction = float(text)
    require(0 < fraction < 1, f"The ratio is {text}, but it must be above 0 and below 1, for example 0.5.")
    return fraction
