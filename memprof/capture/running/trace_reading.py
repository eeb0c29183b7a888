"""What a trace of `jax.profiler` tells: the time of each operation. Runs in the child process, where JAX is."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import jax

from memprof.analysis.records.measurement import OpTime
from memprof.errors import InternalError

# A line of a device plane on which other lines are summed up; its events would count twice.
_SUMMARIES = frozenset({"XLA Ops", "XLA Modules", "Steps", "XLA TraceMe"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What is read of a trace.

    Attributes:
        op_times: of one program, over all traced steps, those that took most first.
        program_id: the number that the trace gives to that program.
    """

    op_times: tuple[OpTime, ...]
    program_id: int


def session_folder(trace_folder: Path) -> Path:
    """The folder of the one session in a log directory of `jax.profiler`.

    Raises:
        InternalError: there is not exactly one.
    """
    sessions = list((trace_folder / "plugins" / "profile").glob("*"))
    if len(sessions) != 1:
        raise InternalError(f"jax.profiler left {len(sessions)} sessions where one was expected")
    return sessions[0]


def read_trace(session: Path, module_name: str, *, num_devices: int = 1) -> Trace:
    """Add up the time of each operation of a program: the mean of the devices that the trace is of.

    On a CPU an operation is an event of the thread that runs it, on a GPU of the stream; both carry the names of the
    operation and of its program (jax 0.10.2; a GPU's trace was not seen).

    Raises:
        InternalError: the trace holds no operation of that program.
    """
    seconds: dict[str, float] = defaultdict(float)
    num_calls: dict[str, int] = defaultdict(int)
    program_id = None
    for path in session.glob("*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            has_streams = any(line.name.startswith("Stream") for line in plane.lines)
            for line in plane.lines:
                if has_streams and line.name in _SUMMARIES:
                    continue
                for event in line.events:
                    stats = dict(event.stats)
                    if stats.get("hlo_module") != module_name or "hlo_op" not in stats:
                        continue
                    name = str(stats["hlo_op"])
                    seconds[name] += event.duration_ns / 1e9
                    num_calls[name] += 1
                    program_id = stats.get("program_id", program_id)
    if not seconds:
        raise InternalError(f"the trace holds no operation of {module_name}")
    names = sorted(seconds, key=lambda name: (-seconds[name], name))
    return Trace(
        op_times=tuple(
            OpTime(name=name, seconds=seconds[name] / num_devices, num_calls=round(num_calls[name] / num_devices))
            for name in names
        ),
        program_id=1 if program_id is None else int(program_id),
    )
