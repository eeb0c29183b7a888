"""The reasons why a function was recompiled: how its call differed from the most similar earlier one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memprof.analysis.records.watched import SeenCall

_MAX_NAMES, _MAX_VALUES = 3, 3
_PLACED = "with the same arguments, placed differently on the devices"
_JITTED = "jitted anew each time: call jax.jit once, outside of the loop or function that calls the result"
_UNKNOWN = "with the same types: another placement of arrays, a setting of JAX, a mesh around it, or a cleared cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompile:
    """A reason why a function was recompiled.

    Attributes:
        times: number of its compiles for this reason.
        reason: the reason in a few words: `batch['x'] was float32[32,64], then float32[20,64]`.
    """

    times: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Change:
    """The differences of a call: the names of the changed arguments (if empty, see `text`), and their types."""

    names: tuple[str, ...]
    before: tuple[str, ...]
    now: tuple[str, ...]
    text: str = ""


def recompiles(calls: Sequence[SeenCall]) -> tuple[Recompile, ...]:
    """Return why a function was recompiled, most frequent reason first.

    Args:
        calls: the calls for which it was compiled, in order; a repeated call was compiled twice.
    """
    changes = [
        min((_change(call, before) for before in calls[:number]), key=lambda change: len(change.names))
        for number, call in enumerate(calls)
        if number
    ]
    groups: dict[tuple[tuple[str, ...], str], list[_Change]] = {}
    for change in changes:
        groups.setdefault((change.names, change.text), []).append(change)
    found = [Recompile(times=len(group), reason=_reason(group)) for group in groups.values()]
    return tuple(sorted(found, key=lambda recompile: -recompile.times))


def _change(call: SeenCall, before: SeenCall) -> _Change:
    if call.id == before.id:
        return _Change((), (), (), _PLACED)
    old, new = {**before.arguments, **before.statics}, {**call.arguments, **call.statics}
    names = tuple(name for name in {**old, **new} if old.get(name) != new.get(name))
    if names:
        return _Change(names, _values(old, names), _values(new, names))
    return _Change((), (), (), _JITTED if call.jit != before.jit else _UNKNOWN)


def _values(types: Mapping[str, str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(types.get(name, "not there") for name in names)


def _reason(group: Sequence[_Change]) -> str:
    """Return one sentence for all compiles in which the same arguments changed."""
    first = group[0]
    if not first.names:
        return first.text
    values = list(dict.fromkeys(change.now[0] for change in (*group,)))
    values = list(dict.fromkeys([first.before[0], *values]))
    more = f" and {len(values) - _MAX_VALUES:,} more" if len(values) > _MAX_VALUES else ""
    named = first.names[0]
    others = f"; so did {_shortened(first.names[1:])}" if len(first.names) > 1 else ""
    return f"{named} changed: {', then '.join(values[:_MAX_VALUES])}{more}{others}"


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"
