"""Values that depend on the loops and branches around the instructions that write them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from memprof.analysis.attribution.aliases import IN_PLACE, AliasSets, called_computations
from memprof.analysis.attribution.dataflow import Dataflow
from memprof.analysis.hlo.program import Computation, Program
from memprof.analysis.records.categories import Phase

_PASSES_FORWARD = frozenset({Phase.FORWARD, Phase.UNDIFFERENTIATED})
_ENTRY = -1


def made_by_branches(program: Program, groups: AliasSets, flow: Dataflow) -> frozenset[int]:
    """Return the groups that several branches of one `cond` or `switch` make; only one branch runs."""
    branches: dict[int, tuple[int, int]] = {}  # by instruction: the conditional and the number of the branch
    for index in groups.order:  # inner conditionals come first
        instruction = program.instructions[index]
        if instruction.opcode != "conditional":
            continue
        for number, computation in enumerate(instruction.called):
            for inner in _instructions_in(program, program.computations[computation]):
                branches.setdefault(inner, (index, number))
    shared = set()
    for group, definers in enumerate(flow.definers) if branches else ():
        found = {branches[definer] for definer in definers if definer in branches}
        if len(found) > len({conditional for conditional, _ in found}):
            shared.add(group)
    return frozenset(shared)


def written_and_read(program: Program, groups: AliasSets, flow: Dataflow) -> frozenset[int]:
    """Return the groups that a forward pass writes in part and reads in the same iteration, like a KV cache.

    The stacked results of a scan are not among them: its body writes them, and only later operations read them.
    """
    writes: dict[int, set[int]] = defaultdict(set)  # by group: the instructions
    for operation in flow.operations:
        if program.instructions[operation.index].opcode in IN_PLACE:
            for group in operation.outputs:
                if (0, group) in operation.inputs and flow.phase(group) in _PASSES_FORWARD:
                    writes[group].add(operation.index)
    if not writes:
        return frozenset()
    loops: dict[int, int] = {}  # by instruction: the innermost loop around it
    for index in groups.order:  # inner loops come first
        if program.instructions[index].opcode == "while":
            for computation in called_computations(program, program.instructions[index]):
                for inner in _instructions_in(program, computation):
                    loops.setdefault(inner, index)
    found = set()
    for operation in flow.operations:
        for _, group in operation.inputs:
            if group in writes and operation.index not in writes[group]:
                loop = loops.get(operation.index, _ENTRY)
                if any(loops.get(write, _ENTRY) == loop for write in writes[group]):
                    found.add(group)
    return frozenset(found)


def _instructions_in(program: Program, computation: Computation) -> Iterator[int]:
    for index in computation.instructions:
        yield index
        for called in called_computations(program, program.instructions[index]):
            yield from _instructions_in(program, called)
