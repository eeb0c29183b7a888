"""An argument leaf: its path as JAX writes it (`state.params['dense']['kernel']`), and the role it is given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from memprof.analysis.categories import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A role, and the reason in a few words."""

    role: Role
    reason: str


def longest_prefix(path: str, prefixes: Iterable[str]) -> str | None:
    """The longest prefix of `path` that ends where one of its keys ends; None where there is none."""
    known = prefixes if isinstance(prefixes, (dict, frozenset, set)) else frozenset(prefixes)
    return next((prefix for prefix in all_prefixes(path) if prefix in known), None)


def all_prefixes(path: str) -> Iterator[str]:
    """The path itself and those of all the containers that it lies in, from the inside out."""
    return (path[:stop] for stop in range(len(path), 0, -1) if path[stop : stop + 1] in ("", ".", "["))
