"""An argument leaf: its path as JAX writes it (`state.params['dense']['kernel']`), and the role it is given."""

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
    """The longest prefix of `path` that ends where one of its keys ends; None where there is none."""
    known = prefixes if isinstance(prefixes, (dict, frozenset, set)) else frozenset(prefixes)
    return next((prefix for prefix in all_prefixes(path) if prefix in known), None)


def all_prefixes(path: str) -> Iterator[str]:
    """The path itself and those of all the containers that it lies in, from the inside out."""
    return (path[:stop] for stop in range(len(path), 0, -1) if path[stop : stop + 1] in ("", ".", "["))


def parse_roles(texts: Iterable[str]) -> dict[str, str]:
    """What `--role` says: from `state.ema=other_state` to roles by path prefix.

    Raises:
        MemprofError: a text has another form.
    """
    roles = {}
    for text in texts:
        path, equals, role = text.rpartition("=")
        if not (path and equals and role):
            raise MemprofError(f"'{text}' gives no role: write PATH=ROLE, for example state.ema=other_state")
        roles[path] = role
    return roles


def given_roles(roles: Mapping[str, Role | str], paths: Sequence[str]) -> dict[str, Role]:
    """The roles that the user gives, by path prefix.

    Raises:
        MemprofError: one is none, or is for a path that is not there.
    """
    known = {
        path[:stop] for path in paths for stop in range(1, len(path) + 1) if path[stop : stop + 1] in ("", ".", "[")
    }
    given = {}
    for prefix, role in roles.items():
        if prefix not in known:
            raise MemprofError(
                f"a role is given for '{prefix}', but the step has no such argument; its arguments are"
                f" {shortened(sorted({path.split('[')[0].split('.')[0] for path in paths}))}"
            )
        try:
            given[prefix] = Role(role)
        except ValueError as error:
            raise MemprofError(f"'{role}' is no role; give {prefix} one of {', '.join(Role)}") from error
    return given


def shortened(names: Sequence[str], limit: int = 3) -> str:
    """The first names of a list, for a sentence."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
