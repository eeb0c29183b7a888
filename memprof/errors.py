"""The errors that memprof raises on purpose.

Each says in one sentence what happened, what was expected and what to try next. Only the command line turns them into
exit codes; everything else raises. A `MemprofError` never carries a traceback of ours; `WorkloadError` carries the
user's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class MemprofError(Exception):
    """A user's mistake: a wrong name, a bad value, a missing package, a file that is no capture."""


class WorkloadError(MemprofError):
    """The profiled step itself failed: while it was imported, traced or lowered, or the compiler crashed on it.

    Attributes:
        details: what the user needs in order to fix it, for example their own traceback or the last lines that the
            compiler wrote; empty when the sentence says it all.
    """

    def __init__(self, message: str, *, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class InternalError(MemprofError):
    """A fact that memprof relies on does not hold: a defect of memprof, or an XLA that it does not understand yet."""


class Interrupted(BaseException):
    """The user has ended the command. Not an error of the step that was at work, so nothing takes it for one."""


@contextmanager
def as_damage(file: str | None) -> Iterator[None]:
    """Turn an `InternalError` about a file that memprof has read into a sentence about the file.

    Args:
        file: its name; None if the program was compiled by this memprof, where the error stays.
    """
    try:
        yield
    except InternalError as error:
        if file is None:
            raise
        raise MemprofError(
            f"{file} is damaged, or of a version of XLA that this memprof does not understand: {error}; make it again"
        ) from error


def unknown_name(kind: str, given: str, allowed: Iterable[str]) -> MemprofError:
    """Returns the error for `given`, which is not among `allowed`: it suggests the closest name and lists them all.

    Args:
        kind: what the name should have been, for example `technique` or `field of transformer`.
        given: what the user wrote.
        allowed: the names that exist, in the order in which to list them.
    """
    import difflib  # only a mistake needs it

    choices = tuple(allowed)
    by_lower_case = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(given.lower(), by_lower_case, n=1)
    hint = f" (did you mean '{by_lower_case[close[0]]}'?)" if close else ""
    return MemprofError(f"There is no {kind} '{given}'{hint}: choose from {', '.join(choices)}.")
