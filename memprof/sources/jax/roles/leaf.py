"""Argument leaves: paths as JAX writes them (`state.params['dense']['kernel']`), and the roles given for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from memprof.analysis.records.categories import Role
from memprof.errors import MemprofError


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A role, and the reason in a few words."""

    role: Role
    reason: str


def longest_prefix(path: str, prefixes: Iterable[str]) -> str | None:
    """Return the longest of these prefixes of `path` that ends at the end of a key, or None."""
    known = prefixes if isinstance(prefixes, (dict, frozenset, set)) else frozenset(prefixes)
    return next((prefix for prefix in all_prefixes(path) if prefix in known), None)


def all_prefixes(path: str) -> Iterator[str]:
    """Return the path itself and the paths of all containers around it, from the inside out."""
    return (path[:stop] for stop in range(len(path), 0, -1) if path[stop : stop + 1] in ("", ".", "["))


def parse_roles(texts: Iterable[str]) -> dict[str, str]:
    """Parse the values of `--role`, such as `state.ema=other_state`, to roles by path prefix.

    Raises:
        MemprofError: a text has another form.
    """
    roles = {}
    for text in texts:
        path, equals, role = text.rpartition("=")
        if not (path and equals and role):
            raise MemprofError(f"'{text}' has no role: write PATH=ROLE, for example state.ema=other_state")
        roles[path] = role
    return roles


def given_roles(roles: Mapping[str, Role | str], paths: Sequence[str]) -> dict[str, Role]:
    """Validate the user's roles, by path prefix.

    Raises:
        MemprofError: a role is invalid, or its path does not exist.
    """
    known = {
        path[:stop] for path in paths for stop in range(1, len(path) + 1) if path[stop : stop + 1] in ("", ".", "[")
    }
    given = {}
    for prefix, role in roles.items():
        if prefix not in known:
            raise MemprofError(
                f"a role was given for '{prefix}', but the step has no such argument; its arguments are"
                f" {shortened(sorted({path.split('[')[0].split('.')[0] for path in paths}))}"
            )
        try:
            given[prefix] = Role(role)
        except ValueError as error:
            raise MemprofError(f"'{role}' is not a role; give {prefix} one of {', '.join(Role)}") from error
    return given


def shortened(names: Sequence[str], limit: int = 3) -> str:
    """Join the first names of a list for a sentence, with the number of the others."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
