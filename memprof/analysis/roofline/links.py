"""The least time of a collective: each device sends its part of the payload around a ring.

With n devices, a device sends (n - 1) / n of the payload for an `all-gather`, a `reduce-scatter` or an `all-to-all`,
twice that for an `all-reduce`, and all of it for a `collective-permute` or a `collective-broadcast`. The model assumes
that every link is the device's own (NVLink, or PCIe without NVLink), at its bandwidth in one direction. Links between
hosts are slower, so the bound holds there too. Switches that reduce data in transit (NVLink SHARP) can beat a ring.
"""

from __future__ import annotations

from memprof.analysis.hlo.program import COLLECTIVES, Instruction, Program
from memprof.analysis.mesh.collectives import payload

_TURNS = {"all-gather": 1, "reduce-scatter": 1, "all-to-all": 1, "all-reduce": 2}
_WHOLE = frozenset({"collective-permute", "collective-broadcast"})


def seconds_of_collective(
    program: Program, instruction: Instruction, *, num_devices: int, bytes_per_second: float
) -> float | None:
    """Return the least time of a collective in seconds; None if its sizes are known only at run time.

    Args:
        num_devices: the number of devices of the whole program.
        bytes_per_second: the bandwidth of a device's link, in one direction.
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
