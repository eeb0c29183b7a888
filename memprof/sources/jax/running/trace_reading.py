"""Reader of `jax.profiler` traces: the time of each operation. It runs in the child process, which has JAX."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import jax

from memprof.analysis.records.measurement import OpTime
from memprof.errors import InternalError

# Lines of a device plane that summarize other lines; their events would count twice.
_SUMMARIES = frozenset({"XLA Ops", "XLA Modules", "Steps", "XLA TraceMe"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The relevant content of a trace.

    Attributes:
        op_times: times of one program's operations over all traced steps, longest first.
        program_id: the program's id in the trace.
    """

    op_times: tuple[OpTime, ...]
    program_id: int


def session_folder(trace_folder: Path) -> Path:
    """Return the folder of the only session in a log directory of `jax.profiler`.

    Raises:
        InternalError: there is not exactly one session.
    """
    sessions = list((trace_folder / "plugins" / "profile").glob("*"))
    if len(sessions) != 1:
        raise InternalError(f"jax.profiler left {len(sessions)} sessions instead of one")
    return sessions[0]


def read_trace(session: Path, module_name: str, *, num_devices: int = 1) -> Trace:
    """Add up the time of each operation of a program, as the mean over the traced devices.

    On a CPU, an operation is an event of the thread that runs it, on a GPU an event of the stream. Both carry the names
    of the operation and its program (jax 0.10.2; not checked with a GPU's trace).

    Raises:
        InternalError: the trace has no operation of that program.
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
