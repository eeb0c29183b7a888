"""What offloading needs of a target: a memory of its own beside the host's."""

from __future__ import annotations

from memprof.analysis.capture import TargetInfo
from memprof.errors import MemprofError


def check_has_host_memory(target: TargetInfo) -> None:
    """Raises `MemprofError` for the CPU, whose memory is the host's: XLA takes pinned_host there for the same."""
    if target.platform == "cpu":
        raise MemprofError(
            "Offloading moves arrays from the device's memory to the host's, and on the CPU they are one: choose a GPU"
            " with --target, for example h100-80gb."
        )
