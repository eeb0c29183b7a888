"""The error for a name that does not exist: it suggests the closest one and lists those that do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from memprof.errors import MemprofError


def unknown_name(kind: str, given: str, allowed: Iterable[str]) -> MemprofError:
    """Returns the error for `given`, which is not among `allowed`.

    Args:
        kind: what the name should have been, for example `technique` or `field of transformer`.
        given: what the user wrote.
        allowed: the names that exist, in the order in which to list them.
    """
    choices = tuple(allowed)
    by_lower_case = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(given.lower(), by_lower_case, n=1)
    hint = f" (did you mean '{by_lower_case[close[0]]}'?)" if close else ""
    return MemprofError(f"There is no {kind} '{given}'{hint}: choose from {', '.join(choices)}.")
