"""Checks that the configuration records make of their own values, each with one sentence for the user."""

from __future__ import annotations

from typing import Any

from memprof.errors import MemprofError


def require(condition: bool, sentence: str) -> None:
    """Raises `MemprofError(sentence)` unless the condition holds."""
    if not condition:
        raise MemprofError(sentence)


def require_positive(config: Any, *names: str) -> None:
    """Raises unless each of the named sizes is above zero."""
    for name in names:
        value = getattr(config, name)
        require(value > 0, f"{name} is {value}, but it must be a number above zero.")


def require_rates(config: Any, *names: str) -> None:
    """Raises unless each of the named dropout rates is at least 0 and below 1 (at 1 nothing would be left)."""
    for name in names:
        value = getattr(config, name)
        require(0 <= value < 1, f"{name} is {value}, but a rate must be at least 0 and below 1.")
