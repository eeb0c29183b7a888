"""Families of arrays of one size that are computed from each other element by element.

Several rules of advice need to know which other arrays disappear with an array: those computed from it element by
element, and its cotangent. Operations that preserve the number of elements extend a family; matrix products, reductions
and gathers end it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import prod

from msgspec import Struct

from memprof.analysis.attribution.dataflow import Dataflow
from memprof.analysis.attribution.op_names import Named
from memprof.analysis.attribution.operations import SPREADS_OUT, Operation
from memprof.analysis.hlo.program import Instruction, Program
from memprof.analysis.records.categories import Phase

# As plain names: see `dataflow.py`.
_NAMED_NOTHING, _NAMED_BACKWARD = Named.NOTHING, Named.BACKWARD
_BACKWARD, _UPDATE = Phase.BACKWARD, Phase.UPDATE
# The same numbers in another order, layout or precision.
LAYOUT = frozenset({"convert", "copy", "transpose", "reshape", "reverse", "reduce-precision", "bitcast-convert"})
_ELEMENTWISE = LAYOUT | frozenset(
    "abs add and atan2 cbrt ceil clamp compare cosine divide erf exponential exponential-minus-one floor is-finite log"
    " log-plus-one logistic maximum minimum multiply negate not or power remainder round-nearest-afz"
    " round-nearest-even rsqrt select shift-left shift-right-arithmetic shift-right-logical sign sine sqrt subtract tan"
    " tanh xor".split()
)
# Other operations that XLA duplicates, besides elementwise ones.
_REPEATED = frozenset({"broadcast", "slice", "iota", "constant"})
# Operations that write to a loop's stack or read from it, with the operand that they move.
_MOVED_PIECE = {"dynamic-update-slice": 1, "dynamic-slice": 0}


class Step(Struct, frozen=True, gc=False):
    """One operation with a single result, reduced to sizes.

    Attributes:
        inputs: the group of each array operand, by number.
        output: the group of the result.
        size: elements of the result.
        is_elementwise: each element of the result depends only on the elements at the same index.
        is_backward: it belongs to the backward pass.
    """

    instruction: Instruction
    opcode: str
    inputs: tuple[tuple[int, int], ...]
    output: int
    size: int
    is_elementwise: bool
    is_backward: bool

    def operand(self, number: int) -> int | None:
        """Return the group of one operand."""
        return next((group for at, group in self.inputs if at == number), None)


class Steps:
    """The operations of both passes that make arrays, definitions before uses, and the size of each group in elements.

    Operations of the update are left out: there are many of them, and their results belong to no array of a pass.

    Attributes:
        size: elements by group.
        is_minor: groups that do not connect arrays: booleans, and smaller values or constants that are broadcast to
            the size of another array.
        stacked: groups that loops fill piece by piece.
    """

    def __init__(self, program: Program, flow: Dataflow) -> None:
        self.flow = flow
        self.size: dict[int, int] = {}
        self.is_minor: set[int] = set(flow.constants)
        self.stacked: set[int] = set()
        parameters = [program.instructions[index] for index in program.entry.parameters]
        leaves = {each.parameter_number: each.shape.leaves for each in parameters}
        for group, number in flow.argument.items():
            if len(leaves[number]) == 1:
                self.size[group] = prod(leaves[number][0].dimensions)
        self.all = tuple(self._steps(program))
        self._by_size: dict[int, list[Step]] = defaultdict(list)
        self._moved_to: dict[int, list[int]] = defaultdict(list)
        for step in self.all:
            if step.is_elementwise and step.output not in self.is_minor:
                self._by_size[step.size].append(step)
                if self.size[step.output] != step.size:  # rare
                    self._by_size[self.size[step.output]].append(step)
            elif step.opcode in _MOVED_PIECE:
                moved = step.operand(_MOVED_PIECE[step.opcode])
                if moved is not None:
                    self._moved_to[moved].append(step.output)
        self._joining_at: dict[int, dict[int, list[tuple[Step, list[int]]]]] = {}
        self._twins = _twins(self.all, flow.constants)

    def _steps(self, program: Program) -> Iterator[Step]:
        instructions, sizes, minor, phase_of = program.instructions, self.size, self.is_minor, self.flow.phase
        for operation in self.flow.operations:
            outputs = operation.outputs
            if not outputs:
                continue
            phase = phase_of(outputs[0])
            if phase is _UPDATE:
                continue
            instruction = instructions[operation.index]
            opcode, leaves = instruction.opcode, instruction.shape.leaves
            if len(outputs) < len(leaves):  # one of several combined collectives
                leaves = leaves[operation.inputs[0][0] :: len(instruction.operands)]
            # The last element of a library call's result is its scratch.
            is_elementwise = opcode in _ELEMENTWISE
            is_minor = opcode in SPREADS_OUT or (is_elementwise and self._is_spread(operation))
            size = prod(leaves[0].dimensions)
            for output, leaf in zip(outputs, leaves, strict=True):
                if output not in sizes:
                    sizes[output] = size if leaf is leaves[0] else prod(leaf.dimensions)
                if is_minor or leaf.dtype == "pred":
                    minor.add(output)
            if opcode == "dynamic-update-slice":
                self.stacked.update(outputs)
            named = operation.named
            is_backward = named is _NAMED_BACKWARD or (named is _NAMED_NOTHING and phase is _BACKWARD)
            yield Step(instruction, opcode, operation.inputs, outputs[0], size, is_elementwise, is_backward)

    def _is_spread(self, operation: Operation) -> bool:
        for _, group in operation.inputs:
            if group not in self.is_minor:
                return False
        # Two values that are broadcast along different axes make an array of distinct elements.
        return len({group for _, group in operation.inputs if self.flow.origin[group]}) < 2

    def alike(self, step: Step) -> list[int]:
        """Return the operands of an elementwise step with as many elements as its result, without minor ones."""
        return [group for _, group in step.inputs if self.size.get(group) == step.size and group not in self.is_minor]

    def grown(self, seeds: Iterable[int]) -> frozenset[int]:
        """Return the seeds, arrays computed from them element by element, their cotangents, and loops' stacks of them.

        Two arrays that are combined do not become one family: if a layer's result is added to its input, the family of
        the input does not include the result. But an array that is combined with an array of the forward pass in the
        backward pass is its cotangent.
        """
        found: set[int] = set()
        new = list(seeds)
        while new:
            group = new.pop()
            if group not in found:
                found.add(group)
                new += self._twins.get(group, ())
                for step, alike in self._joining(group):
                    new += self._joined(found, step, alike)
                new += self._moved_to.get(group, ())
        return frozenset(found)

    def _joining(self, group: int) -> Sequence[tuple[Step, list[int]]]:
        """Return the steps that may connect other groups with a group, each with its operands of the same size.

        Few groups are looked up, and the arrays of a family have one size, so only steps of those sizes are visited.
        """
        size = self.size.get(group, -1)
        if size not in self._joining_at:
            joining = self._joining_at[size] = defaultdict(list)
            for step in self._by_size.get(size, ()):
                alike = self.alike(step)
                for each in {*alike, step.output}:
                    joining[each].append((step, alike))
        return self._joining_at[size].get(group, ())

    def _joined(self, found: set[int], step: Step, alike: list[int]) -> Iterable[int]:
        """Return the groups that a step connects with the groups found so far."""
        if alike and found.issuperset(alike):
            return (step.output,)
        if len(alike) == 1:
            return alike
        if step.is_backward and any(
            group in found and self.flow.computed_in(group) is not Phase.BACKWARD for group in alike
        ):
            return (*alike, step.output)
        return ()


def _twins(steps: Iterable[Step], constants: Iterable[int]) -> dict[int, list[int]]:
    """Return groups that hold equal values, because XLA duplicates cheap operations in each fusion that needs them.

    If steps are otherwise equal, their constants are assumed to be equal.
    """
    first: dict[tuple[object, ...], int] = {}
    known_as = dict.fromkeys(constants, -1)
    twins: dict[int, list[int]] = {}
    for step in steps:
        if not (step.is_elementwise or step.opcode in _REPEATED):
            continue
        instruction = step.instruction
        inputs = tuple([known_as.get(group, group) for _, group in step.inputs])
        named = (instruction.op_name, instruction.stack_frame_id)
        leaf = instruction.shape.leaves[0]
        key = (step.opcode, named, leaf.dtype, leaf.dimensions, instruction.dimensions, inputs)
        original = known_as[step.output] = first.setdefault(key, step.output)
        if original != step.output:
            alike = twins.setdefault(original, [original])
            alike.append(step.output)
            twins[step.output] = alike
    return twins
