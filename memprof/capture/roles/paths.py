"""Paths in the argument tree, as JAX writes them: `state.params['dense']['kernel']`."""

from __future__ import annotations

from collections.abc import Iterable


def longest_prefix(path: str, prefixes: Iterable[str]) -> str | None:
    """The longest prefix of `path` that ends where one of its keys ends; None where there is none."""
    known = prefixes if isinstance(prefixes, (dict, frozenset, set)) else frozenset(prefixes)
    for stop in range(len(path), 0, -1):
        if path[stop : stop + 1] in ("", ".", "[") and path[:stop] in known:
            return path[:stop]
    return None
