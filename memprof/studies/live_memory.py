"""Analyse a memory profile of JAX: which code made the live arrays, which arrays leaked, and which belong to a step.

JAX writes neither shape nor dtype into the profile, so an array is matched with an argument of a step by its size in
bytes. If several stacks have arrays of the same size, the stack that made most of the step's arrays is matched first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.live_buffer import StackFrame
from memprof.analysis.records.memory_profile import Alive, Kind, MemoryProfile
from memprof.analysis.records.report import Report

_Calls = tuple[StackFrame, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The allocations of one stack of calls in the user's own code.

    Attributes:
        calls: calls of the stack, outermost first.
    """

    kind: Kind
    calls: _Calls
    count: int
    size_bytes: int

    @property
    def source(self) -> str:
        """The innermost line; empty if JAX recorded none."""
        return f"{self.calls[-1].file}:{self.calls[-1].line}" if self.calls else ""

    @property
    def function(self) -> str:
        """The innermost function."""
        return self.calls[-1].function if self.calls else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Allocations of one size by one stack, before and after."""

    kind: Kind
    calls: _Calls
    each_bytes: int
    before_count: int
    after_count: int

    @property
    def delta_bytes(self) -> int:
        return (self.after_count - self.before_count) * self.each_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepArrays:
    """Arguments of one type that a step takes, and the live arrays of their size, up to that number.

    Attributes:
        num_wanted, num_alive: number of arguments, and number of live arrays among them.
        each_bytes: the size of one of them on one device.
    """

    category: Category
    shape: tuple[int, ...]
    dtype: str
    num_wanted: int
    num_alive: int
    each_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """Live arrays that are not arguments of the step.

    Attributes:
        like: the categories of the step's arguments that have the same size.
    """

    calls: _Calls
    count: int
    each_bytes: int
    like: tuple[Category, ...]

    @property
    def size_bytes(self) -> int:
        return self.count * self.each_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideStep:
    """A memory profile compared with a step.

    Attributes:
        device: the fullest device of the profile; the numbers are for it.
        others: other live arrays, largest first.
        executable_bytes: machine code and constants of all executables.
    """

    label: str
    device: str
    step: tuple[StepArrays, ...]
    others: tuple[Other, ...]
    executable_bytes: int
    footprint_bytes: int
    pool_bytes: int | None

    @property
    def other_bytes(self) -> int:
        return sum(each.size_bytes for each in self.others)

    @property
    def left_bytes(self) -> int | None:
        """The bytes of JAX's pool that are left for the step; None if the pool is unknown."""
        return None if self.pool_bytes is None else self.pool_bytes - self.other_bytes - self.executable_bytes


def by_calls(alive: Iterable[Alive]) -> tuple[Made, ...]:
    """Return the allocations of each stack of the user's own calls, most bytes first."""
    groups: dict[tuple[Kind, _Calls], list[Alive]] = defaultdict(list)
    for each in alive:
        groups[each.kind, each.own_calls].append(each)
    made = [
        Made(
            kind=kind,
            calls=calls,
            count=sum(each.count for each in members),
            size_bytes=sum(each.size_bytes for each in members),
        )
        for (kind, calls), members in groups.items()
    ]
    return tuple(sorted(made, key=lambda each: (-each.size_bytes, each.source)))


def by_folder(alive: Iterable[Alive]) -> Mapping[str, int]:
    """Return the bytes of each folder of source files, largest first."""
    sizes: Counter[str] = Counter()
    for each in alive:
        calls = each.own_calls
        sizes[str(PurePath(calls[-1].file).parent) if calls else ""] += each.size_bytes
    return dict(sizes.most_common())


def changes(before: MemoryProfile, after: MemoryProfile) -> tuple[Changed, ...]:
    """Return the allocations that grew or shrank, largest growth first."""
    counts = [_counts(each) for each in (before, after)]
    found = (
        Changed(kind=key[0], calls=key[1], each_bytes=key[2], before_count=counts[0][key], after_count=counts[1][key])
        for key in dict.fromkeys((*counts[0], *counts[1]))
    )
    changed = [each for each in found if each.before_count != each.after_count]
    return tuple(sorted(changed, key=lambda each: -each.delta_bytes))


def _counts(profile: MemoryProfile) -> Counter[tuple[Kind, _Calls, int]]:
    counts: Counter[tuple[Kind, _Calls, int]] = Counter()
    for each in profile.alive:
        counts[each.kind, each.own_calls, each.each_bytes] += each.count
    return counts


def beside_step(profile: MemoryProfile, report: Report) -> BesideStep:
    """Divide live arrays into the step's arguments and all others."""
    device = next(iter(profile.devices), "")
    wanted = _arguments(report)
    alive = profile.of(Kind.BUFFER, device)
    sizes = _by_size(wanted)
    left = _without_step(alive, sizes)
    remaining: Counter[int] = Counter()
    for each in alive:
        remaining[each.each_bytes] += each.count
    step = []
    for (category, shape, dtype, size), count in sorted(wanted.items(), key=lambda item: -item[0][3] * item[1]):
        num_alive = min(count, remaining[size])
        remaining[size] -= num_alive
        step.append(
            StepArrays(
                category=category, shape=shape, dtype=dtype, num_wanted=count, num_alive=num_alive, each_bytes=size
            )
        )
    others = [
        Other(calls=calls, count=count, each_bytes=size, like=_like(size, wanted))
        for (calls, size), count in left.items()
        if count
    ]
    return BesideStep(
        label=report.label,
        device=device,
        step=tuple(step),
        others=tuple(sorted(others, key=lambda each: -each.size_bytes)),
        executable_bytes=profile.size_of(Kind.EXECUTABLE),
        footprint_bytes=report.unpressed.footprint_bytes,
        pool_bytes=report.verdict.pool_bytes,
    )


_Type = tuple[Category, tuple[int, ...], str, int]


def _arguments(report: Report) -> Counter[_Type]:
    """Return the number of arguments of a step by type, as one device holds them."""
    return Counter(
        (each.category, each.shape, each.dtype, each.size_bytes)
        for each in report.buffers
        if each.phase is Phase.ARGUMENT
    )


def _by_size(wanted: Mapping[_Type, int]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for (*_, size), count in wanted.items():
        counts[size] += count
    return counts


def _without_step(alive: Sequence[Alive], wanted: Mapping[int, int]) -> dict[tuple[_Calls, int], int]:
    """Return the arrays that match no argument of the step, by calls and size."""
    counts: Counter[tuple[_Calls, int]] = Counter()
    for each in alive:
        counts[each.own_calls, each.each_bytes] += each.count
    shares: Counter[_Calls] = Counter()
    for (calls, size), count in counts.items():
        shares[calls] += min(count, wanted.get(size, 0)) * size
    missing = Counter(wanted)
    left = {}
    for (calls, size), count in sorted(counts.items(), key=lambda item: -shares[item[0][0]]):
        taken = min(count, missing[size])
        missing[size] -= taken
        left[calls, size] = count - taken
    return left


def _like(size: int, wanted: Mapping[_Type, int]) -> tuple[Category, ...]:
    return tuple(dict.fromkeys(category for category, *_, each in wanted if each == size))
