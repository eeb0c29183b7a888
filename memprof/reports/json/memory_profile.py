"""What `--format json` prints of JAX's memory profiles."""

# Without `from __future__ import annotations`: from texts msgspec makes these types in three times the time.

from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct

from memprof.analysis.records.categories import Category
from memprof.analysis.records.live_buffer import StackFrame
from memprof.analysis.records.memory_profile import Kind, MemoryProfile
from memprof.reports.json.types import Shape, Size, about, filled
from memprof.studies.live_memory import BesideStep, by_calls, by_folder, changes

_Calls = Annotated[tuple[str, ...], about("`file.py:12 function`, of the user's own code, outermost first.")]


class MadeJson(Struct, frozen=True, kw_only=True):
    """The allocations of one stack of calls."""

    kind: Kind
    count: Size
    size_bytes: Size
    calls: _Calls


class StepArraysJson(Struct, frozen=True, kw_only=True):
    """Arguments of one type that a step takes."""

    category: Category
    shape: Shape
    dtype: str
    num_wanted: Annotated[Size, about("Number of these arguments.")]
    num_alive: Annotated[Size, about("Number of live arrays of their size, up to that number.")]
    each_bytes: Size


class OtherJson(Struct, frozen=True, kw_only=True):
    """Live arrays that are not arguments of the step."""

    count: Size
    each_bytes: Size
    like: Annotated[tuple[Category, ...], about("Categories of the step's arguments that have the same size.")]
    calls: _Calls


class BesideStepJson(Struct, frozen=True, kw_only=True):
    """The profile compared with a step; arrays are matched by size, because JAX writes neither shape nor dtype."""

    label: str
    device: Annotated[str, about("The fullest device; all numbers are for it.")]
    step: tuple[StepArraysJson, ...]
    others: tuple[OtherJson, ...]
    other_bytes: Size
    executable_bytes: Size
    footprint_bytes: Size
    pool_bytes: Annotated[Size | None, about("JAX's memory pool; null if it is unknown.")]
    left_bytes: Annotated[
        int | None, about("Bytes of the pool that are left for the step; null if the pool is unknown.")
    ]


class MemoryProfileJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.memory_profile/1"):
    """The live arrays of JAX's memory profile: `memprof import memory.prof --format json`."""

    name: str
    buffer_bytes: Annotated[Size, about("Bytes of arrays on all devices.")]
    executable_bytes: Size
    devices: Annotated[dict[str, Size], about("Bytes of arrays on each device.")]
    folders: Annotated[dict[str, Size], about("Bytes of arrays by the folder of the innermost own line.")]
    made: Annotated[tuple[MadeJson, ...], about("Allocations by stack, most bytes first.")]
    beside_step: BesideStepJson | None


class ChangedJson(Struct, frozen=True, kw_only=True):
    """Allocations of one size by one stack of calls."""

    kind: Kind
    each_bytes: Size
    before_count: Size
    after_count: Size
    delta_bytes: int
    calls: _Calls


class MemoryProfileDiffJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.memory_profile_diff/1"):
    """The changes between two memory profiles: `memprof show AFTER.prof --diff BEFORE.prof --format json`."""

    before: str
    after: str
    delta_bytes: Annotated[int, about("Bytes of arrays.")]
    changes: Annotated[tuple[ChangedJson, ...], about("Changes, largest growth first.")]


def memory_profile_json(profile: MemoryProfile, beside: BesideStep | None) -> MemoryProfileJson:
    """What is printed of one profile."""
    return MemoryProfileJson(
        name=profile.name,
        buffer_bytes=profile.size_of(Kind.BUFFER),
        executable_bytes=profile.size_of(Kind.EXECUTABLE),
        devices={device: profile.size_of(Kind.BUFFER, device) for device in profile.devices},
        folders=dict(by_folder(profile.of(Kind.BUFFER))),
        made=tuple(filled(MadeJson, each, calls=_texts(each.calls)) for each in by_calls(profile.alive)),
        beside_step=None
        if beside is None
        else filled(
            BesideStepJson,
            beside,
            step=[filled(StepArraysJson, each) for each in beside.step],
            others=[filled(OtherJson, each, calls=_texts(each.calls)) for each in beside.others],
        ),
    )


def memory_profile_diff_json(before: MemoryProfile, after: MemoryProfile) -> MemoryProfileDiffJson:
    """What is printed of two profiles."""
    return MemoryProfileDiffJson(
        before=before.name,
        after=after.name,
        delta_bytes=after.size_of(Kind.BUFFER) - before.size_of(Kind.BUFFER),
        changes=tuple(filled(ChangedJson, each, calls=_texts(each.calls)) for each in changes(before, after)),
    )


def _texts(calls: Sequence[StackFrame]) -> tuple[str, ...]:
    return tuple(f"{call.file}:{call.line} {call.function}".rstrip() for call in calls)
