"""What an attribution rule is, and what it says of a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memprof.analysis.categories import Category
from memprof.analysis.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A rule's word on a value: its category, and why."""

    category: Category
    rule: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One idea about where memory goes.

    Attributes:
        name: as the reports show it.
        order: rules with a lower number are asked first.
        explain: gives the category and the reason in one sentence, or None to decline.
    """

    name: str
    order: int
    explain: Callable[[Value], tuple[Category, str] | None]
