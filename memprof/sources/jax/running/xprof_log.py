"""Log directories for XProf and for TensorBoard's profile plugin.

A session is the folder `LOGDIR/plugins/profile/SESSION`. The memory viewer reads the compiled program from its
`MODULE(ID).hlo_proto.pb`, and the list of sessions comes from its `*.xplane.pb`. So XProf can also show a program that
never ran: this module writes an xplane that contains only the program, in the same metadata as a real trace. If the
program file already exists, XProf (2.24) does not extract the program from the trace.

A session appears atomically: it is built in a temporary folder and then renamed.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from memprof.analysis.hlo.hlo_proto import message_classes, parse_proto
from memprof.analysis.records.capture import Capture
from memprof.errors import MemprofError
from memprof.files import check_folder_writable, make_folder
from memprof.sources.jax.processes.work_folder import work_folder

SESSIONS = Path("plugins", "profile")
_HOST = "memprof"

# The fields of tsl/profiler/protobuf/xplane.proto that memprof uses. A map is a repeated message of key and value.
XSpace = message_classes(
    "memprof.xplane",
    {
        "XStat": {"metadata_id": (1, "int64"), "bytes_value": (6, "bytes")},
        "XEventMetadata": {"id": (1, "int64"), "name": (2, "string"), "stats": (5, "XStat[]")},
        "XStatMetadata": {"id": (1, "int64"), "name": (2, "string")},
        "EventEntry": {"key": (1, "int64"), "value": (2, "XEventMetadata")},
        "StatEntry": {"key": (1, "int64"), "value": (2, "XStatMetadata")},
        "XPlane": {
            "id": (1, "int64"),
            "name": (2, "string"),
            "event_metadata": (4, "EventEntry[]"),
            "stat_metadata": (5, "StatEntry[]"),
        },
        "XSpace": {"planes": (1, "XPlane[]")},
    },
)["XSpace"]


def write_compiled_session(capture: Capture, log_folder: Path, *, name: str) -> Path:
    """Write a session of a compiled program, without a trace of a run.

    Args:
        name: name of the session; a number is appended if the name is taken.

    Returns:
        The session's folder.

    Raises:
        MemprofError: the session cannot be written, or the capture has no readable program.
    """
    if capture.trace is not None:
        raise MemprofError(f"{capture.label} is a trace, but XProf shows only compiled programs")
    module = module_name(capture.hlo_proto)

    def fill(folder: Path) -> None:
        (folder / f"{_HOST}.xplane.pb").write_bytes(_xplane_of_program(f"{module}(1)", capture.hlo_proto))
        (folder / program_file_name(module, 1)).write_bytes(capture.hlo_proto)

    return _write_session(log_folder, name, fill)


def write_traced_session(capture: Capture, trace_folder: Path, log_folder: Path, *, name: str) -> Path:
    """Copy the only session in `trace_folder`, which `run.measure` wrote: a trace with its program beside it.

    The traces of a job with several processes become one session with one file per process. Its name ends with the
    session name that the processes share.

    Returns:
        The session's folder.

    Raises:
        MemprofError: the session cannot be written.
    """
    (traced,) = (trace_folder / SESSIONS).iterdir()
    measured = capture.measured
    assert measured is not None  # a traced step has run
    process = measured.process if measured.num_processes > 1 else None

    def fill(folder: Path) -> None:
        for path in traced.iterdir():  # `copytree` would raise a list of errors
            shutil.copyfile(path, folder / _name_in_session(path.name, process))

    if process is None:
        return _write_session(log_folder, name, fill)
    return _write_session(log_folder, f"{name}-{traced.name}", fill, is_shared=True)


def check_log_folder(folder: Path) -> None:
    """Check in advance whether sessions can be written.

    Raises:
        MemprofError: the folder is a file, or cannot be created or written to.
    """
    check_folder_writable(folder / SESSIONS)


def _write_session(log_folder: Path, name: str, fill: Callable[[Path], object], *, is_shared: bool = False) -> Path:
    """Write a session. If other processes write to it, too, add its files one by one; else take a free name."""
    sessions = log_folder / SESSIONS
    make_folder(sessions)
    try:
        with work_folder(sessions, prefix=".memprof-") as temporary:
            half = temporary / "session"
            half.mkdir()
            fill(half)
            if not is_shared:
                return _take_free_name(half, sessions, name)
            session = sessions / name
            session.mkdir(exist_ok=True)
            for path in half.iterdir():
                path.replace(session / path.name)
            return session
    except OSError as error:
        raise MemprofError(f"The session cannot be written to {sessions}: {error.strerror or error}") from error


def _name_in_session(name: str, process: int | None) -> str:
    """Add the process to a file name: JAX names trace files by host, and several processes may share a host."""
    for ending in (".xplane.pb", ".trace.json.gz"):
        if process is not None and name.endswith(ending):
            return f"{name.removesuffix(ending)}_{process}{ending}"
    return name


def _take_free_name(half: Path, sessions: Path, name: str) -> Path:
    """Rename a folder to the first free name; try the next if another command takes it at the same time."""
    for number in itertools.count(1):
        place = sessions / (name if number == 1 else f"{name}-{number}")
        if place.exists():
            continue
        try:
            return half.rename(place)
        except OSError:
            if not place.exists():
                raise
    raise AssertionError("a number is not terminated")


def module_name(hlo_proto: bytes) -> str:
    """Return the name of the compiled program, such as `jit_step`, in a form valid as a file name."""
    name = str(parse_proto(hlo_proto).hlo_module.name)
    return re.sub(r"[^\w.-]+", "_", name) or "program"


def program_file_name(module: str, program_id: int) -> str:
    """Return the file name under which XProf searches for a program."""
    return f"{module}({program_id}).hlo_proto.pb"


def _xplane_of_program(module: str, hlo_proto: bytes) -> bytes:
    space = XSpace()
    plane = space.planes.add(id=1, name="/host:metadata")
    stat_name = plane.stat_metadata.add(key=1).value
    stat_name.id, stat_name.name = 1, "Hlo Proto"  # the exact name that XProf expects
    event = plane.event_metadata.add(key=1).value
    event.id, event.name = 1, module
    event.stats.add(metadata_id=1, bytes_value=hlo_proto)
    data: bytes = space.SerializeToString()
    return data
