"""Patterns in the data flow that advice needs: attention, softmax, arrays to split, the end of the backward pass.

**Attention** is a softmax over a product of two values whose result enters another product:

    scores = queries @ keys              a product of two values that depend on data, no weights
    weights = exp(scores) / sum(exp(scores))
    attended = weights @ values          in the forward pass, with a value that depends on data

A loss over all pairs (contrastive learning) has the softmax but no second product in the forward pass, logits are a
product with weights, and other square arrays lack the softmax or the product.

A **family** is the set of arrays that shrink if one array is computed in pieces along its first axis: the arrays
computed from it element by element, and their cotangents. An array cannot be split if its rows are mixed and the
mixture meets the array again in the forward pass. Batch statistics do this: they read all rows, and each row reads
them. Statistics of single rows (softmax, layer normalization) do not prevent a split, nor does a loss that sums over
rows. Arrays that a loop stacks are computed in pieces already.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from memprof.analysis.attribution.aliases import called_computations
from memprof.analysis.attribution.dataflow import FROM_DATA
from memprof.analysis.attribution.elementwise import LAYOUT, Step, Steps
from memprof.analysis.attribution.op_names import Named, named_phase
from memprof.analysis.attribution.values import Values
from memprof.analysis.hlo.buffer_table import BufferTable
from memprof.analysis.hlo.liveness import Liveness
from memprof.analysis.hlo.program import Instruction, Program
from memprof.analysis.hlo.program_order import ProgramOrder

_LARGE = 0.1  # of the footprint; smaller arrays need no family
# XLA's names for matrix products in libraries.
_LIBRARY_PRODUCTS = ("__cublas", "__onednn$matmul", "__cudnn$fmha")

_PRODUCTS = frozenset({"dot", "custom-call"})
# XLA pads arrays that it sums in parts.
_MOVING = LAYOUT | {"pad"}
# Operations that read several rows at once, along any axis.
_MIXING = frozenset({"reduce-window", "scatter", "cholesky", "triangular-solve", "select-and-scatter"})
# Operations that count as work of a pass, even inside a fusion.
_WORK = frozenset({"dot", "convolution", "custom-call", "reduce", "scatter", "reduce-window", "select-and-scatter"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns:
    """See the module's docstring. Groups are those of `aliases.py`.

    Attributes:
        stacked: groups that a loop fills, one piece per iteration.
        families: the family number of each group.
        backward_end: the position in program order of the end of the backward pass; -1 without a backward pass.
    """

    of_attention: frozenset[int]
    of_softmax: frozenset[int]
    stacked: frozenset[int]
    families: dict[int, int]
    backward_end: int


def find_patterns(
    program: Program, table: BufferTable, traces: Iterable[Liveness], values: Values, order: ProgramOrder
) -> Patterns:
    """Find the patterns in the data flow of a program."""
    steps = Steps(program, values.flow)
    large_bytes = _LARGE * table.footprint_bytes
    large: dict[int, int] = {}
    for liveness in traces:
        for live_range in liveness.live_ranges:
            if live_range.at_peak and live_range.size_bytes > large_bytes:
                group = values.group_of(table.logical_buffers[live_range.buffer_id])
                if group is not None:
                    large[group] = live_range.size_bytes
    return Patterns(
        of_attention=attention_arrays(steps),
        of_softmax=softmax_arrays(steps),
        stacked=frozenset(steps.stacked),
        families=families(steps, sorted(large, key=lambda group: -large[group])),
        backward_end=_backward_end(program, order),
    )


class _AttentionPart(IntEnum):
    """The part of a value in attention, as bits of a set."""

    SCORES = 1  # a product of two values, or made from one element by element
    EXPONENTIAL = 2  # exponentials of scores
    SUM = 4  # a sum of exponentials
    WEIGHTS = 8  # exponentials divided by their sum


def attention_arrays(steps: Steps) -> frozenset[int]:
    """Return the groups that hold one number for each query and key of an attention, in both passes."""
    known: dict[int, int] = {}
    confirmed: set[int] = set()
    steps.flow.repeat(lambda: _pass_down(steps, known, confirmed))
    return steps.grown(_trace_to_scores(steps, known, confirmed)) if confirmed else frozenset()


def softmax_arrays(steps: Steps) -> frozenset[int]:
    """Return the groups whose exponentials are summed, as a loss over classes does with its logits."""
    exponential_in: dict[int, int] = {}  # by the groups that hold it or a moved copy
    summed: set[int] = set()
    for step in steps.all:
        if step.opcode == "exponential":
            exponential_in[step.output] = step.output
        elif step.opcode == "reduce" or step.opcode in _MOVING:
            moved = exponential_in.get(-1 if (operand := step.operand(0)) is None else operand)
            if moved is None:
                continue
            if step.opcode == "reduce":
                summed.add(moved)
            else:
                exponential_in[step.output] = moved
    return steps.grown(summed) if summed else frozenset()


def _pass_down(steps: Steps, known: dict[int, int], confirmed: set[int]) -> bool:
    """Visit each step. Returns whether anything changed.

    The phase of products matters. The phase of operations between them does not: if both passes divide by the same sum,
    XLA keeps one division, under either name (jaxlib 0.10.2).
    """
    changed = False
    for step in steps.all:
        if step.opcode in _PRODUCTS and _is_product(step):
            of_data = [group for number, group in step.inputs if number < 2 and _depends_on_data(steps, group)]
            is_now = _AttentionPart.SCORES if len(of_data) == 2 and not step.is_backward else 0
            if is_now:
                confirmed.update(group for group in of_data if known.get(group, 0) & _AttentionPart.WEIGHTS)
        else:
            inputs = {number: known[group] for number, group in step.inputs if group in known}
            is_now = _made(step, inputs) if inputs else 0
        if is_now & ~known.get(step.output, 0):
            known[step.output] = known.get(step.output, 0) | is_now
            changed = True
    return changed


def _is_product(step: Step) -> bool:
    """Whether one of `_PRODUCTS` is a product of matrices; many library calls are not."""
    return step.opcode != "custom-call" or step.instruction.custom_call_target.startswith(_LIBRARY_PRODUCTS)


def _depends_on_data(steps: Steps, group: int) -> bool:
    return bool(steps.flow.origin[group] & FROM_DATA)


def _made(step: Step, inputs: dict[int, int]) -> int:
    """Return the part in attention of the result of an operation other than a product."""
    first, second = inputs.get(0, 0), inputs.get(1, 0)
    both = 0
    for each in inputs.values():
        both |= each
    if step.opcode == "exponential":
        return _AttentionPart.EXPONENTIAL if first & _AttentionPart.SCORES else 0
    if step.opcode == "reduce":
        return _AttentionPart.SUM if first & (_AttentionPart.EXPONENTIAL | _AttentionPart.SUM) else 0
    if step.opcode == "broadcast":
        return first & _AttentionPart.SUM
    if step.opcode in _MOVING or step.opcode in ("dynamic-slice", "dynamic-update-slice"):
        return both
    if not step.is_elementwise:
        return 0
    kept = both & (_AttentionPart.SCORES | _AttentionPart.WEIGHTS | _AttentionPart.SUM)
    if step.opcode == "divide" and first & _AttentionPart.EXPONENTIAL and second & _AttentionPart.SUM:
        return kept | _AttentionPart.WEIGHTS
    if step.opcode == "multiply" and both & _AttentionPart.EXPONENTIAL and both & _AttentionPart.SUM:
        return kept | _AttentionPart.WEIGHTS  # times the reciprocal of the sum
    return kept


def _trace_to_scores(steps: Steps, known: dict[int, int], confirmed: Iterable[int]) -> frozenset[int]:
    """Return the weights that enter the second product, and all values between them and the first product."""
    found = set(confirmed)
    for step in reversed(steps.all):
        if step.output in found and step.is_elementwise:
            found.update(group for group in steps.alike(step) if known.get(group))
    return frozenset(found)


def families(steps: Steps, arrays: Iterable[int]) -> dict[int, int]:
    """Return the family of each group that belongs to one of the given arrays; arrays that cannot be split have none.

    Args:
        arrays: the groups of the arrays.
    """
    found: dict[int, int] = {}
    seen: set[int] = set()
    number = 0
    for array in arrays:
        if array in seen or array in steps.is_minor:
            continue
        family = steps.grown([array])
        seen |= family
        if family & steps.stacked or _is_mixed(steps, family):
            continue
        number += 1
        found.update((group, number) for group in family if group not in found)
    return found


def _is_mixed(steps: Steps, family: frozenset[int]) -> bool:
    """Whether a mixture of the family's rows meets the family again in the forward pass."""
    by_row: set[int] = set()  # statistics of single rows, and values made from them
    mixed: set[int] = set()

    def pass_down() -> bool:
        num_known = len(by_row) + len(mixed)
        for step in steps.all:
            if step.is_backward or step.output in family:
                continue
            groups = {group for _, group in step.inputs}
            of_rows = groups & (family | by_row)
            if groups & mixed or (of_rows and _mixes_rows(step, of_rows)):
                mixed.add(step.output)
            elif of_rows:
                by_row.add(step.output)
        return len(by_row) + len(mixed) != num_known

    steps.flow.repeat(pass_down)
    return any(
        step.output in family and not step.is_backward and any(group in mixed for _, group in step.inputs)
        for step in steps.all
    )


def _mixes_rows(step: Step, of_rows: set[int]) -> bool:
    if step.opcode in ("dot", "custom-call"):
        return len(of_rows) > 1  # a product of rows with rows; the program does not show which rows meet
    if step.opcode in ("reduce", "sort"):
        return 0 in step.instruction.dimensions
    return step.opcode in _MIXING


def _backward_end(program: Program, order: ProgramOrder) -> int:
    """Return the position of the last operation that does work of the backward pass.

    A product or a sum is work, even inside a fusion (if XLA splits a long product into parts, the parts and their sum
    keep its name). An operation that writes a value of the backward pass is work too. Cheap operations at the end of
    the backward pass, such as a cast or a scaling, are fused into the update and do not make it part of the backward
    pass.
    """
    places = reversed(range(order.length))
    return next((place for place in places if _is_backward_work(program, order.instructions[place])), -1)


def _is_backward_work(program: Program, instruction: Instruction) -> bool:
    if instruction.opcode in ("while", "conditional", "call"):
        return False  # the order contains its inner operations
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
