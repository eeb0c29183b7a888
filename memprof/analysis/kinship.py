"""What advice asks of the data flow: which arrays belong together, and where the backward pass ends."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memprof.analysis.aliases import called_computations
from memprof.analysis.attentions import attention_arrays, softmax_arrays
from memprof.analysis.elementwise import LAYOUT, Steps
from memprof.analysis.holdings import Holdings
from memprof.analysis.op_names import Named, named_phase
from memprof.analysis.pieces import families
from memprof.analysis.program import Instruction, Program
from memprof.analysis.program_order import ProgramOrder
from memprof.analysis.report import LiveBuffer
from memprof.analysis.values import Value, Values

_LARGE = 0.1  # of the footprint; what is smaller needs no family
_WORK = frozenset({"dot", "convolution", "custom-call", "reduce", "scatter", "reduce-window", "select-and-scatter"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinship:
    """See the module's docstring. Groups of `aliases.py`, and a position in program order (-1: no backward pass)."""

    of_attention: frozenset[int]
    of_softmax: frozenset[int]
    stacked: frozenset[int]
    families: dict[int, int]
    backward_end: int

    def told(self, buffer: LiveBuffer, value: Value) -> LiveBuffer:
        """A buffer with what is known of the group of its value."""
        return replace(
            buffer,
            is_of_attention=value.group in self.of_attention,
            is_of_softmax=value.group in self.of_softmax,
            is_stacked=value.group in self.stacked,
            family=self.families.get(value.group, 0),
        )


def find_kinship(program: Program, values: Values, order: ProgramOrder, holdings: Holdings) -> Kinship:
    """Look through the data flow of a whole program."""
    steps = Steps(program, values.flow)
    large = {
        holding.value.group: holding.size_bytes
        for holding in holdings.passing
        if holding.at_peak and holding.size_bytes > _LARGE * holdings.footprint_bytes and holding.value.group >= 0
    }
    return Kinship(
        of_attention=attention_arrays(steps),
        of_softmax=softmax_arrays(steps),
        stacked=frozenset(steps.stacked),
        families=families(steps, sorted(large, key=lambda group: -large[group])),
        backward_end=_backward_end(program, order),
    )


def _backward_end(program: Program, order: ProgramOrder) -> int:
    """The position of the last operation that does work of the backward pass.

    A product or a sum is work, in a fusion too (the parts into which XLA splits a long product, and their sum, keep its
    name), and so is whatever writes a value of the backward pass. Cheap operations at the end of the backward pass, a
    cast or a product with a factor, are fused into the update: they do not make it a part of the backward pass.
    """
    return max(
        (place for place, each in enumerate(order.instructions) if _is_backward_work(program, each)),
        default=-1,
    )


def _is_backward_work(program: Program, instruction: Instruction) -> bool:
    if instruction.opcode in ("while", "conditional", "call"):
        return False  # what runs inside stands in the order itself
    if instruction.opcode != "fusion":
        return _is_backward(instruction) and instruction.opcode not in LAYOUT
    inner = [
        program.instructions[index]
        for computation in called_computations(program, instruction)
        for index in computation.instructions
    ]
    return any(each.opcode in _WORK and _is_backward(each) for each in inner) or _is_backward(instruction)


def _is_backward(instruction: Instruction) -> bool:
    return named_phase(instruction.op_name) is Named.BACKWARD
