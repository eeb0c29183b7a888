"""The compiled functions of a script, with the programs of each, and their purpose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from memprof.analysis.records.categories import Role
from memprof.analysis.records.watched import SeenCall, SeenCompile
from memprof.studies.watch.recompiles import Recompile, recompiles

TRAIN_STEP, GRADIENTS, UPDATE, EVAL_STEP, INIT = "train step", "gradients", "update", "eval step", "init"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One compiled program.

    Attributes:
        seen: the observed compile.
        call: the call that it was compiled for; None for an operation of JAX itself.
        roles: number of its arguments of each type in each role; empty if the arguments could not be followed.
        footprint_bytes, live_peak_bytes: None if XLA left no plan of it, for example because the script was killed.
    """

    seen: SeenCompile
    call: SeenCall | None
    folder: Path
    roles: Mapping[Role, Mapping[str, int]]
    footprint_bytes: int | None
    live_peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgram:
    """A function of the script, and the programs that were compiled from it.

    Attributes:
        name: name of the function: `train_step`.
        place: its location: `train.py:31`; empty if unknown.
        kind: `train step`, `eval step`, `init`, ...; empty for other kinds.
        compiles: its compiles, in order.
        state: its parameters by type and number; programs with equal parameters share their state.
        recompiles: the reasons for several compiles.
    """

    name: str
    place: str
    kind: str
    compiles: tuple[Compiled, ...]
    state: Mapping[str, int]
    recompiles: tuple[Recompile, ...]

    @property
    def largest(self) -> Compiled:
        return max(self.compiles, key=lambda each: each.footprint_bytes or 0)

    @property
    def seconds(self) -> float:
        return sum(each.seen.seconds or 0.0 for each in self.compiles)


def programs_of(compiled: Sequence[Compiled]) -> tuple[JobProgram, ...]:
    """Return the functions of the script, most memory first."""
    groups: dict[tuple[str, str], list[Compiled]] = {}
    for each in compiled:
        if each.call is not None:
            groups.setdefault((each.call.function, each.call.place), []).append(each)
    trained: dict[str, int] = {}
    for group in groups.values():
        if _trains(group):
            trained.update(_state(group[-1]))
    found = [
        JobProgram(
            name=name,
            place=place,
            kind=_kind(group[-1], trained),
            compiles=tuple(group),
            state=_state(group[-1]),
            recompiles=recompiles([each.call for each in group if each.call is not None]),
        )
        for (name, place), group in groups.items()
    ]
    return tuple(sorted(found, key=lambda program: -(program.largest.footprint_bytes or 0)))


def type_of(text: str) -> str:
    """Return the type of an argument, without the mark of a weak type."""
    return text.partition(" ")[0]


def _state(compiled: Compiled) -> Mapping[str, int]:
    return compiled.roles.get(Role.PARAMS, {})


def _trains(compiled: Sequence[Compiled]) -> bool:
    return any(each.call is not None and each.call.differentiates for each in compiled)


def _kind(compiled: Compiled, trained: Mapping[str, int]) -> str:
    """Return the purpose of a program, by its arguments, its results, and whether it has a backward pass.

    Args:
        trained: the parameters that are differentiated anywhere in the job, by type and number.
    """
    call, params = compiled.call, _state(compiled)
    assert call is not None
    results = Counter(call.results)
    if call.differentiates:
        return TRAIN_STEP if call.updates else GRADIENTS
    if params:
        return UPDATE if _has(results, params) and Role.OPTIMIZER_STATE in compiled.roles else EVAL_STEP
    return INIT if _has(results, trained) and not _has(Counter(map(type_of, call.arguments.values())), trained) else ""


def _has(types: Mapping[str, int], trained: Mapping[str, int]) -> bool:
    return bool(trained) and all(types.get(kind, 0) >= count for kind, count in trained.items())
