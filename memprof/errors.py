"""The errors that memprof raises on purpose.

Each message says in one sentence what happened, what was expected and what to try next. Only the command line turns
errors into exit codes; all other code raises them. A `MemprofError` never carries a traceback of memprof;
`WorkloadError` carries the user's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class MemprofError(Exception):
    """A user's mistake: a wrong name, a bad value, a missing package, a file that is not a capture."""


class WorkloadError(MemprofError):
    """The profiled step failed while it was imported, traced or lowered, or the compiler crashed on it.

    Attributes:
        details: evidence for the fix, for example the user's own traceback or the last lines that the compiler wrote;
            empty if the message is complete by itself.
    """

    def __init__(self, message: str, *, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class InternalError(MemprofError):
    """An assumption of memprof does not hold: a bug in memprof, or a version of XLA that it does not support yet."""


class Interrupted(BaseException):
    """The user interrupted the command. It is no `Exception`, so no handler mistakes it for a failure of the step."""


@contextmanager
def as_damage(file: str | None) -> Iterator[None]:
    """Turn an `InternalError` raised in the block into a `MemprofError` that names the file being read.

    Args:
        file: the name of the file. None if this memprof compiled the program: the `InternalError` is then raised as
            it is.

    Raises:
        MemprofError: the file is damaged, or was written by a version of XLA that this memprof does not support.
    """
    try:
        yield
    except InternalError as error:
        if file is None:
            raise
        raise MemprofError(
            f"{file} is damaged, or from a version of XLA that this memprof does not support: {error}; create it again"
        ) from error


def unknown_name(kind: str, given: str, allowed: Iterable[str]) -> MemprofError:
    """Return the error for a name that does not exist. It suggests the closest name and lists all allowed names.

    Args:
        kind: the kind of name, for example `technique` or `field of transformer`.
        given: the name that the user wrote.
        allowed: the existing names, in the order in which the message lists them.
    """
    import difflib  # needed after a mistake only

    choices = tuple(allowed)
    by_lower_case = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(given.lower(), by_lower_case, n=1)
    hint = f" (did you mean '{by_lower_case[close[0]]}'?)" if close else ""
    return MemprofError(f"There is no {kind} '{given}'{hint}: choose from {', '.join(choices)}.")
