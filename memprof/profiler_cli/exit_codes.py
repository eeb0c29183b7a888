"""The exit codes of every command."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command's end means to a script."""

    FINE = 0
    CHECK_FAILED = 1
    WRONG_USAGE = 2
    WORKLOAD_FAILED = 3
    OUT_OF_MEMORY = 4
    DEFECT = 70
    INTERRUPTED = 130
    TERMINATED = 143
