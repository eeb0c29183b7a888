"""The least time of a collective: each device sends its part of the payload around a ring.

With n devices a device sends (n - 1) / n of the payload for an `all-gather`, a `reduce-scatter` or an `all-to-all`,
twice that for an `all-reduce`, and all of it for a `collective-permute` or a `collective-broadcast`. Every link is
taken to be the device's own (NVLink, or PCIe where it has none), at its bandwidth in one direction: between hosts it is
slower, so the bound holds there too. Switches that add up what passes through them (NVLink SHARP) can beat a ring.
"""

from __future__ import annotations

from memprof.analysis.hlo.program import COLLECTIVES, Instruction, Program
from memprof.analysis.mesh.collectives import payload

_TURNS = {"all-gather": 1, "reduce-scatter": 1, "all-to-all": 1, "all-reduce": 2}
_WHOLE = frozenset({"collective-permute", "collective-broadcast"})


def seconds_of_collective(
    program: Program, instruction: Instruction, *, num_devices: int, bytes_per_second: float
) -> float | None:
    """The least time of a collective; None: its sizes are decided when it runs.

    Args:
        num_devices: of the whole program.
        bytes_per_second: of a device's link, in one direction.
    """
    kind = COLLECTIVES[instruction.opcode]
    size_bytes = sum(leaf.size_bytes for leaf in payload(program, instruction, kind))
    groups = instruction.device_groups
    if kind in _WHOLE:
        moves = not groups or any(len(set(group)) > 1 for group in groups)
        return size_bytes / bytes_per_second if moves else 0.0
    if kind not in _TURNS:
        return None
    group_size = max(min((len(group) for group in groups), default=num_devices), 1)
    return _TURNS[kind] * (group_size - 1) / group_size * size_bytes / bytes_per_second
