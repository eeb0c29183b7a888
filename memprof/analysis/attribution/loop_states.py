"""The states of loops: values that each iteration computes from the iteration before, such as those of a simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memprof.analysis.attribution.aliases import IN_PLACE, AliasSets, called_computations
from memprof.analysis.attribution.operations import Operation
from memprof.analysis.hlo.program import Computation, Program

_COPIES = frozenset({"copy", "transpose", "reshape"})


def makers_of_states(program: Program, groups: AliasSets, operations: Sequence[Operation]) -> frozenset[int]:
    """Return the instructions that compute the next state of a loop.

    An array that a loop fills, one piece per iteration, is not a state, and neither is one that it only passes on.
    """
    loops = [index for index in groups.order if program.instructions[index].opcode == "while"]
    by_index = {operation.index: operation for operation in operations} if loops else {}
    found: set[int] = set()
    for index in loops:
        states = set(groups.results[index])
        _, body = called_computations(program, program.instructions[index])
        within = [by_index[each] for each in _instructions_of(program, body) if each in by_index]
        for operation in reversed(within):
            if states.isdisjoint(operation.outputs):
                continue
            opcode = program.instructions[operation.index].opcode
            if opcode in _COPIES and operation.moved is not None:
                states.add(operation.moved)
            elif operation.moved is None and not (opcode in IN_PLACE and _is_own_target(operation)):
                found.add(operation.index)
    return frozenset(found)


def _is_own_target(operation: Operation) -> bool:
    """Whether an operation writes a piece of the array that it returns."""
    return any(number == 0 and group in operation.outputs for number, group in operation.inputs)


def _instructions_of(program: Program, body: Computation) -> Iterator[int]:
    """Yield the instructions of a loop's body, with those of its calls and branches, but without inner loops."""
    waiting = [body]
    while waiting:
        for index in waiting.pop().instructions:
            yield index
            if program.instructions[index].opcode != "while":
                waiting += called_computations(program, program.instructions[index])
