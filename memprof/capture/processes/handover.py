"""What a child process hands to the command about a step: what it knows of it, and XLA's plan as XLA wrote it.

The command, which makes the report, is the one that decodes the plan and checks it, so that this is done once. Neither
this nor the text of the source lines needs JAX.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from memprof.analysis.records.capture import Capture
from memprof.capture.capture_file import decoded_without_program, encoded_without_program
from memprof.capture.xla.plan import Plan, with_plan

_FILE = "step.msgpack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """What is known of a step.

    Attributes:
        lowered: the capture without its program, as `encoded_without_program` has encoded it.
        search_path: where the child looks for modules, for the text of source lines; the user's code may have added
            to it.
        plan: None where another machine is to make it.
        cache_key: of the plan in the user's cache, also of one that is still to be made; empty: it is not kept there.
    """

    lowered: bytes
    search_path: tuple[bytes, ...]
    plan: Plan | None
    cache_key: str

    @classmethod
    def of(cls, lowered: Capture, plan: Plan | None, cache_key: str) -> Handover:
        """In the child, what is known of a step."""
        folders = tuple(os.fsencode(os.path.abspath(folder)) for folder in sys.path if isinstance(folder, str))
        return cls(lowered=encoded_without_program(lowered), search_path=folders, plan=plan, cache_key=cache_key)

    def write(self, folder: Path) -> None:
        """Leave it in a work folder."""
        (folder / _FILE).write_bytes(msgspec.msgpack.encode(self))

    @classmethod
    def read(cls, folder: Path) -> Handover:
        """The one that was left in a work folder."""
        return _DECODER.decode((folder / _FILE).read_bytes())

    def capture(self) -> Capture:
        """The capture of the step.

        Raises:
            MemprofError, InternalError: see `with_plan`; or a capture cannot hold what is known of the step.
        """
        assert self.plan is not None
        search_path = [*map(os.fsdecode, self.search_path)]
        return with_plan(decoded_without_program(self.lowered), self.plan, search_path=search_path)


_DECODER = msgspec.msgpack.Decoder(Handover)  # made once: see `untrusted.convert` on threads
