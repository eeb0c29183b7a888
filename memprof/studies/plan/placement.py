"""Where a plan puts its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from memprof.analysis.records.checkpoints import Checkpoints
from memprof.studies.changes.checkpoint_code import Written
from memprof.studies.plan.code import code_of, code_of_functions


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The parts of a step that get a checkpoint.

    Attributes:
        num_blocks: number of their runs in a step.
        is_loop: whether they are the iterations of scans.
        is_nested: whether these scans are within other scans.
        titles: the functions that compute these parts, with files and lines, if known.
        functions: user functions to put the checkpoints around; empty if no function that code can change computes
            exactly these parts.
        has_blocks: whether these parts are the blocks of the step (see `blocks.py`), not the calls of these functions.
    """

    num_blocks: int
    is_loop: bool
    is_nested: bool = False
    titles: tuple[str, ...] = ()
    functions: tuple[Written, ...] = ()
    has_blocks: bool = True

    def code(self, checkpoints: Checkpoints) -> str:
        """Return the checkpoints as code to paste."""
        is_in_parts = checkpoints.num_first is not None or checkpoints.group_size is not None
        is_uniform = not is_in_parts and not checkpoints.offloaded
        if self.functions and (not self.has_blocks or (self.is_loop and is_uniform)):
            return code_of_functions(checkpoints, self.functions, replaces_others=self.has_blocks)
        return code_of(checkpoints, is_loop=self.is_loop, is_nested=self.is_nested, places=self.titles)
