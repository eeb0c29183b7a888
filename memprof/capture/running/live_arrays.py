"""The arrays that are on the device: how many of each type, and what holds them."""

from __future__ import annotations

import gc
import inspect
import sys
import time
import types
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import jax

from memprof.analysis.records.live_buffer import array_type
from memprof.analysis.records.watched import LiveArrays, LiveGroup
from memprof.capture.targets.families import is_host

_MOST_HOLDERS = 6  # from an array to what has a name
_MOST_OBJECTS = 50
_NUM_ASKED = 3
_IN_CONTAINER = "[...]"
_OURS = str(Path(__file__).resolve().parents[2])
_started = time.monotonic()  # of the script


def type_text(array: Any) -> str:
    """`float32[128,784]`."""
    return array_type(array.dtype, array.shape)


def since_start() -> float:
    """Seconds since the script began."""
    return time.monotonic() - _started


def count_seconds_from(started: float) -> None:
    """Set when the script began, by the monotonic clock, which all processes of a machine share."""
    global _started
    _started = started


def live_arrays(find_holders_of: Collection[str] = (), error: BaseException | None = None) -> LiveArrays:
    """What is on the device now.

    Args:
        find_holders_of: types of arrays of which it is looked up what holds them, which walks over all of Python's
            objects.
        error: an error on its way, whose frames hold what their functions did.
    """
    found: dict[str, tuple[int, dict[Any, int]]] = {}
    wanted: dict[str, list[Any]] = {kind: [] for kind in find_holders_of}
    for array in jax.live_arrays():
        if not _has_memory(array):
            continue
        kind = type_text(array)
        count, on_device = found.get(kind, (0, {}))
        for device, size in _bytes_on(array):
            on_device[device] = on_device.get(device, 0) + size
        found[kind] = count + 1, on_device
        if kind in wanted:
            wanted[kind].append(array)
    fullest = _fullest([on_device for _, on_device in found.values()])
    groups = [
        LiveGroup(
            type=kind,
            count=count,
            size_bytes=on_device.get(fullest, 0),
            holder=_holder_of_most(wanted.get(kind, []), error),
        )
        for kind, (count, on_device) in found.items()
    ]
    groups.sort(key=lambda group: -group.size_bytes)
    stats = fullest.memory_stats() if fullest is not None else None
    return LiveArrays(
        seconds=since_start(),
        groups=tuple(groups),
        in_use_bytes=stats.get("bytes_in_use") if stats else None,
    )


def _has_memory(array: Any) -> bool:
    """Whether an array is in memory: it is not deleted, its computation has not failed, and on a CPU has begun.

    A CPU takes memory when it computes, other devices when they are told to (jaxlib 0.10.2 to 0.12).
    """
    try:
        if not array.is_ready():
            return not is_host(next(iter(array.sharding.device_set)))
        array.block_until_ready()
    except (RuntimeError, ValueError):  # its own error, or that it is deleted
        return False
    return True


def _bytes_on(array: Any) -> Iterator[tuple[Any, int]]:
    """The bytes of an array on each device of this process that has a part of it."""
    devices = array.sharding.addressable_devices
    size = array.nbytes if len(devices) == 1 and array.is_fully_addressable else _shard_bytes(array)
    for device in devices:
        yield device, size


def _shard_bytes(array: Any) -> int:
    size = array.dtype.itemsize
    for length in array.sharding.shard_shape(array.shape):
        size *= length
    return int(size)


def _fullest(groups: list[dict[Any, int]]) -> Any:
    """The device that holds most; None where nothing is on any."""
    totals: dict[Any, int] = {}
    for on_device in groups:
        for device, size in on_device.items():
            totals[device] = totals.get(device, 0) + size
    return max(totals, key=lambda device: totals[device], default=None)


def _holder_of_most(arrays: list[Any], error: BaseException | None) -> str:
    """What holds arrays of one type, as far as a few of them tell: rather a container than a variable of one's own."""
    few = [arrays[number * (len(arrays) - 1) // _NUM_ASKED] for number in range(_NUM_ASKED)] if arrays else []
    holders = [_holder(array, error) for array in few]
    return max(holders, key=lambda holder: (_IN_CONTAINER in holder, bool(holder)), default="")


def _holder(array: Any, error: BaseException | None) -> str:
    """The variable through which the script holds an array: `losses[...] in train (train.py:31)`; empty: none is found.

    Local variables are in no object that Python's garbage collector knows: they are looked up in the frames.
    """
    names, own = _variables(error), {id(frame) for frame in _frames(None)}
    level: list[tuple[Any, str]] = [(array, "")]
    seen = {id(array)}
    for _ in range(_MOST_HOLDERS):
        for thing, path in level:
            if id(thing) in names:
                variable, where = names[id(thing)]
                return f"{variable}{path}{where}"
        above: list[tuple[Any, str]] = []
        for thing, path in level:
            for holder in gc.get_referrers(thing):
                if id(holder) in seen or id(holder) in own or holder is level or holder is above:
                    continue
                seen.add(id(holder))
                if (step := _step(holder, thing)) is not None:
                    above.append((holder, f"{step}{path}"))
        level = above[:_MOST_OBJECTS]
    return ""


def _step(holder: Any, thing: Any) -> str | None:
    """How one leads from a holder to what it holds; None: it is no way that a script would write."""
    if isinstance(holder, (list, tuple, set)) or type(holder).__name__ == "deque":
        return _IN_CONTAINER
    if isinstance(holder, dict):
        key = next((key for key, value in _copied(holder).items() if value is thing), None)
        return None if key is None else f"[{key!r}]"
    if isinstance(holder, (types.FrameType, types.ModuleType, types.FunctionType, types.CellType, type)):
        return None
    attributes = getattr(holder, "__dict__", None)
    if isinstance(attributes, dict):
        return next((f".{name}" for name, value in _copied(attributes).items() if value is thing), "")
    return ""


def _copied(entries: dict[Any, Any]) -> dict[Any, Any]:
    """A dictionary as it is now: the threads of the script go on.

    A list of its entries is not made in one go: its many tuples set off the garbage collector, and that JAX's callback.
    """
    return dict.copy(entries)


def _variables(error: BaseException | None) -> dict[int, tuple[str, str]]:
    """The variables of a script, global and local, by what they hold: their name, and where they are."""
    found: dict[int, tuple[str, str]] = {}
    for module in list(sys.modules.values()):
        if not _is_of_script(getattr(module, "__file__", None)):
            continue
        for name, value in _copied(vars(module)).items():
            found.setdefault(id(value), (name, f" ({Path(str(module.__file__)).name})"))
    for frame in _frames(error):
        if not _is_of_script(frame.f_code.co_filename):
            continue
        where = f" in {frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
        for name, value in _locals_of(frame).items():
            found[id(value)] = name, where if frame.f_code.co_name != "<module>" else ""
    return found


def _locals_of(frame: types.FrameType) -> dict[str, Any]:
    """The local variables of a function that runs.

    Up to Python 3.12 the frame keeps what it gives here, and with it arrays that the function has long forgotten.
    """
    given = frame.f_locals
    found = dict(given)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        given.clear()  # a copy, not the variables
    return found


def _frames(error: BaseException | None) -> Iterator[types.FrameType]:
    for frame in sys._current_frames().values():
        at: types.FrameType | None = frame
        while at is not None:
            yield at
            at = at.f_back
    trace = error.__traceback__ if error is not None else None
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _is_of_script(file: object) -> bool:
    """Whether code is the user's own, as far as its place tells."""
    return isinstance(file, str) and not file.startswith((sys.prefix, sys.base_prefix, _OURS, "<"))
