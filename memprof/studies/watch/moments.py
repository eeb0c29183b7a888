"""The arrays on the device beside the programs of a job: at its largest moment, and those that kept growing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from memprof.analysis.records.watched import LiveArrays
from memprof.studies.watch.programs import Compiled, JobProgram, type_of

_MIN_SAMPLES = 4
_SEEN = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherArrays:
    """Arrays of one type that are on the device and not arguments of the running program.

    Attributes:
        what: their place in the job's state, if their type or their holder shows it; else empty.
    """

    type: str
    count: int
    size_bytes: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestMoment:
    """The moment of the largest memory use: a program, and the arrays beside it.

    Attributes:
        seconds: time since the start of the script.
        is_seen: whether this is the observed start of the program's first run. Otherwise the program is the script's
            largest one, which may have run beside the arrays on the device.
        others: the arrays that are not arguments of the program, largest first.
        live_bytes: bytes of all arrays.
        in_use_bytes: bytes that the allocator had in use; None if it does not count them.
    """

    program: str
    footprint_bytes: int
    seconds: float
    is_seen: bool
    others: tuple[OtherArrays, ...]
    live_bytes: int
    in_use_bytes: int | None

    @property
    def others_bytes(self) -> int:
        return sum(each.size_bytes for each in self.others)

    @property
    def size_bytes(self) -> int:
        return self.footprint_bytes + self.others_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Arrays of one type whose number kept growing while no new program was compiled."""

    type: str
    from_count: int
    to_count: int
    grown_bytes: int
    seconds: float
    what: str


def with_holders(samples: Sequence[LiveArrays]) -> list[LiveArrays]:
    """Return the samples with holders of arrays filled in for all; the holders were recorded in a few samples."""
    holders = {group.type: group.holder for sample in samples for group in sample.groups if group.holder}
    return [
        replace(sample, groups=tuple(replace(group, holder=holders.get(group.type, "")) for group in sample.groups))
        for sample in samples
    ]


def largest_moment(programs: Sequence[JobProgram], samples: Sequence[LiveArrays]) -> LargestMoment | None:
    """Return the observed moment of the largest memory use; None if no program of the script was seen."""
    with_plan = [program for program in programs if program.largest.footprint_bytes is not None]
    moments = [
        _moment(each, program, each.seen.live, is_seen=True)
        for program in with_plan
        for each in program.compiles
        if each.seen.live is not None and each.footprint_bytes is not None
    ]
    if with_plan:
        moments += [_moment(with_plan[0].largest, with_plan[0], live, is_seen=False) for live in samples]
    # If the two are about equal, prefer the observed one.
    return max(moments, key=lambda moment: moment.size_bytes * (_SEEN if moment.is_seen else 1.0), default=None)


def _moment(compiled: Compiled, program: JobProgram, live: LiveArrays, *, is_seen: bool) -> LargestMoment:
    assert compiled.call is not None
    assert compiled.footprint_bytes is not None
    own = Counter(map(type_of, compiled.call.arguments.values()))
    if not is_seen:
        own.update(compiled.call.results)  # the program may just have made them
    others = []
    for group in live.groups:
        count = group.count - min(group.count, own[group.type])
        if count:
            size = group.size_bytes * count // group.count
            what = _what(group.type, group.holder, program)
            others.append(OtherArrays(type=group.type, count=count, size_bytes=size, what=what))
    return LargestMoment(
        program=program.name,
        footprint_bytes=compiled.footprint_bytes,
        seconds=live.seconds,
        is_seen=is_seen,
        others=tuple(sorted(others, key=lambda each: -each.size_bytes)),
        live_bytes=live.size_bytes,
        in_use_bytes=live.in_use_bytes,
    )


def _what(kind: str, holder: str, program: JobProgram) -> str:
    """Return the place of arrays of a type, by their holder, or by the program's arguments or results of that type."""
    call = program.largest.call
    assert call is not None
    like = [path for path, text in call.arguments.items() if type_of(text) == kind]
    as_what = ""
    if like:
        as_what = f"like {like[0]}{f' and {len(like) - 1:,} more' if len(like) > 1 else ''} of {program.name}"
    elif kind in call.results:
        as_what = f"like a result of {program.name}"
    return ", ".join(filter(None, (f"held by {holder}" if holder else "", as_what)))


def growth_of(programs: Sequence[JobProgram], samples: Sequence[LiveArrays]) -> tuple[Growth, ...]:
    """Return the arrays whose number kept growing since the script's last compile, most bytes first."""
    last = max((each.seen.began for program in programs for each in program.compiles), default=0.0)
    steady = [sample for sample in samples if sample.seconds > last]
    if len(steady) < _MIN_SAMPLES:
        return ()
    by_type = [{group.type: group for group in sample.groups} for sample in steady]
    found = []
    for kind in by_type[-1]:
        groups = [groups[kind] for groups in by_type if kind in groups]
        counts = [group.count for group in groups]
        rises = sum(after > before for before, after in pairwise(counts))
        if len(groups) < _MIN_SAMPLES or 2 * rises <= len(counts) - 1 or counts[-1] - counts[0] < rises:
            continue
        first, final = groups[0], groups[-1]
        holder = next((group.holder for group in reversed(groups) if group.holder), "")
        found.append(
            Growth(
                type=kind,
                from_count=first.count,
                to_count=final.count,
                grown_bytes=final.size_bytes - first.size_bytes,
                seconds=steady[-1].seconds - steady[0].seconds,
                what=_what(kind, holder, programs[0]),
            )
        )
    return tuple(sorted(found, key=lambda growth: -growth.grown_bytes))
