"""The live arrays on the device: the number of each type, and the variables that hold them."""

from __future__ import annotations

import gc
import inspect
import sys
import time
import types
from collections.abc import Collection, Iterator
from math import prod
from pathlib import Path
from typing import Any

import jax

from memprof.analysis.records.live_buffer import array_type
from memprof.analysis.records.watched import LiveArrays, LiveGroup
from memprof.sources.jax.targets.families import is_host

_MAX_HOLDERS = 6  # references from an array up to a variable
_MAX_OBJECTS = 50
_NUM_ASKED = 3
_IN_CONTAINER = "[...]"
_OURS = str(Path(__file__).resolve().parents[3])
_started = time.monotonic()  # of the script


def type_text(array: Any) -> str:
    """Return the type of an array, such as `float32[128,784]`."""
    return array_type(array.dtype, array.shape)


def since_start() -> float:
    """Return the seconds since the script began."""
    return time.monotonic() - _started


def count_seconds_from(started: float) -> None:
    """Set the start time of the script, by the monotonic clock that all processes of a machine share."""
    global _started
    _started = started


def live_arrays(find_holders_of: Collection[str] = (), error: BaseException | None = None) -> LiveArrays:
    """Return the arrays that are on the device now.

    Args:
        find_holders_of: array types whose holders are searched for, which walks over all Python objects.
        error: the error being raised, whose frames still hold their local variables.
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
        seconds=since_start(), groups=tuple(groups), in_use_bytes=stats.get("bytes_in_use") if stats else None
    )


def _has_memory(array: Any) -> bool:
    """Whether an array is in memory: it is not deleted, its computation did not fail, and on a CPU it is complete.

    A CPU allocates memory when it computes, other devices when the computation is enqueued.
    """
    try:
        if not array.is_ready():
            return not is_host(next(iter(array.sharding.device_set)))
        array.block_until_ready()
    except (RuntimeError, ValueError):  # its computation failed, or it is deleted
        return False
    return True


def _bytes_on(array: Any) -> Iterator[tuple[Any, int]]:
    """Yield the bytes of an array on each device of this process that has a shard of it."""
    devices = array.sharding.addressable_devices
    size = array.dtype.itemsize * prod(array.sharding.shard_shape(array.shape))
    for device in devices:
        yield device, size


def _fullest(groups: list[dict[Any, int]]) -> Any:
    """Return the device with the most bytes, or None if no device has any."""
    totals: dict[Any, int] = {}
    for on_device in groups:
        for device, size in on_device.items():
            totals[device] = totals.get(device, 0) + size
    return max(totals, key=lambda device: totals[device], default=None)


def _holder_of_most(arrays: list[Any], error: BaseException | None) -> str:
    """Return the holder of a few sampled arrays of one type, preferring a container to a plain variable."""
    few = [arrays[number * (len(arrays) - 1) // _NUM_ASKED] for number in range(_NUM_ASKED)] if arrays else []
    holders = [_holder(array, error) for array in few]
    return max(holders, key=lambda holder: (_IN_CONTAINER in holder, bool(holder)), default="")


def _holder(array: Any, error: BaseException | None) -> str:
    """Return the variable that holds an array, as `losses[...] in train (train.py:31)`, or an empty string.

    Python's garbage collector does not track local variables, so they are read from the frames.
    """
    names, own = _variables(error), {id(frame) for frame in _frames(None)}
    level: list[tuple[Any, str]] = [(array, "")]
    seen = {id(array)}
    for _ in range(_MAX_HOLDERS):
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
        level = above[:_MAX_OBJECTS]
    return ""


def _step(holder: Any, thing: Any) -> str | None:
    """Return the access from a holder to an object, such as `.params`, or None if a script would not write one."""
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
    """Copy a dictionary atomically, because the script's threads continue to run.

    Building a list of its entries is not atomic: its many tuples trigger the garbage collector, and with it JAX's
    callback.
    """
    return dict.copy(entries)


def _variables(error: BaseException | None) -> dict[int, tuple[str, str]]:
    """Return the name and location of the script's global and local variables, by the id of their value."""
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
    """Return the local variables of a running function.

    Up to Python 3.12, the frame keeps the dictionary that it returns, and with it arrays that the function has dropped.
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
    """Whether a file is the user's own, judging by its path."""
    return isinstance(file, str) and not file.startswith((sys.prefix, sys.base_prefix, _OURS, "<"))
