"""The result that a child process hands to the command: a step's capture without its program, and XLA's raw plan.

Only the command, which makes the report, decodes and checks the plan, so this happens once. Neither this nor reading
the source lines needs JAX.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from memprof.analysis.records.capture import Capture
from memprof.sources.capture_file import decoded_without_program, encoded_without_program
from memprof.sources.jax.xla.plan import Plan, PlannedStep

_FILE = "step.msgpack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """The result of a child process for one step.

    Attributes:
        lowered: the capture without its program, encoded by `encoded_without_program`.
        search_path: the child's module search path, for the text of source lines; the user's code may have extended
            it.
        plan: the plan; None if another machine will make it.
        cache_key: the plan's key in the user's cache, also before the plan is made; empty if it is not cached.
    """

    lowered: bytes
    search_path: tuple[bytes, ...]
    plan: Plan | None
    cache_key: str

    @classmethod
    def of(cls, lowered: Capture, plan: Plan | None, cache_key: str) -> Handover:
        """Build the handover, in the child."""
        folders = tuple(os.fsencode(os.path.abspath(folder)) for folder in sys.path if isinstance(folder, str))
        return cls(lowered=encoded_without_program(lowered), search_path=folders, plan=plan, cache_key=cache_key)

    def write(self, folder: Path) -> None:
        """Write the handover to a work folder."""
        (folder / _FILE).write_bytes(msgspec.msgpack.encode(self))

    @classmethod
    def read(cls, folder: Path) -> Handover:
        """Read the handover from a work folder."""
        return _DECODER.decode((folder / _FILE).read_bytes())

    @property
    def step(self) -> Capture:
        """The capture without its program.

        Raises:
            MemprofError: the encoded capture is invalid.
        """
        return decoded_without_program(self.lowered)

    def planned(self) -> PlannedStep:
        """Return the step with its plan.

        Raises:
            MemprofError: see `step`.
        """
        assert self.plan is not None
        return PlannedStep(
            lowered=self.step,
            plan=self.plan,
            cache_key=self.cache_key,
            search_path=tuple(map(os.fsdecode, self.search_path)),
        )


_DECODER = msgspec.msgpack.Decoder(Handover)  # created once: see `untrusted.convert` on threads
