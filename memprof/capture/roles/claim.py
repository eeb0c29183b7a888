"""What is said of an argument leaf: its role, and why."""

from __future__ import annotations

from dataclasses import dataclass

from memprof.analysis.categories import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A role, and the reason in a few words."""

    role: Role
    reason: str
