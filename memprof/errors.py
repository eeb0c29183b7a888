"""The errors that memprof raises on purpose.

Each says in one sentence what happened, what was expected and what to try next. Only the command line turns them into
exit codes; everything else raises. A `MemprofError` never carries a traceback of ours; `WorkloadError` carries the
user's own.
"""

from __future__ import annotations


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
