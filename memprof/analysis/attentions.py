"""Attention, found by data flow: a softmax over a product of two values, whose result is multiplied again.

    scores = queries @ keys              a product of two values that depend on data, no weights
    weights = exp(scores) / sum(exp(scores))
    attended = weights @ values          in the forward pass, with a value that depends on data

A loss over all pairs (contrastive learning) has the softmax and no second product in the forward pass, logits are a
product with weights, and square arrays of other kinds lack the softmax or the product.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from memprof.analysis.dataflow import ROLES, Origin
from memprof.analysis.elementwise import LAYOUT, Step, Steps

# XLA's names of matrix products by a library (jaxlib 0.10.2 to 0.12).
_LIBRARY_PRODUCTS = ("__cublas", "__onednn$matmul", "__cudnn$fmha")

# XLA pads what it sums up in parts.
_MOVING = LAYOUT | {"pad"}


class _Is(IntEnum):
    """What a value is on the way to an attention: bits of a set."""

    SCORES = 1  # a product of two values, or made of one element by element
    EXPONENTIAL = 2  # of scores
    SUM = 4  # of exponentials
    WEIGHTS = 8  # exponentials over their sum


def attention_arrays(steps: Steps) -> frozenset[int]:
    """The groups that hold a number for each query and key of an attention, in both passes."""
    told: dict[int, int] = {}
    confirmed: set[int] = set()
    steps.flow.repeat(lambda: _pass_down(steps, told, confirmed))
    return steps.grown(_back_to_scores(steps, told, confirmed)) if confirmed else frozenset()


def softmax_arrays(steps: Steps) -> frozenset[int]:
    """The groups of which exponentials are taken and summed up, as a loss over classes does with its logits."""
    exponential_in: dict[int, int] = {}  # by the groups that it is moved to
    summed: set[int] = set()
    for step in steps.all:
        moved = exponential_in.get(-1 if (operand := step.operand(0)) is None else operand)
        if step.opcode == "exponential":
            exponential_in[step.output] = step.output
        elif step.opcode in _MOVING and moved is not None:
            exponential_in[step.output] = moved
        elif step.opcode == "reduce" and moved is not None:
            summed.add(moved)
    return steps.grown(summed) if summed else frozenset()


def _pass_down(steps: Steps, told: dict[int, int], confirmed: set[int]) -> bool:
    """Look at each step. Returns whether anything changed.

    Products are asked for their phase. The operations between them are not: where both passes divide by the same sum,
    XLA keeps one division, under the name of either (jaxlib 0.10.2).
    """
    changed = False
    for step in steps.all:
        if _is_product(step):
            of_data = [group for number, group in step.inputs if number < 2 and _depends_on_data(steps, group)]
            is_now = _Is.SCORES if len(of_data) == 2 and not step.is_backward else 0
            if is_now:
                confirmed.update(group for group in of_data if told.get(group, 0) & _Is.WEIGHTS)
        else:
            inputs = {number: told[group] for number, group in step.inputs if group in told}
            is_now = _made(step, inputs) if inputs else 0
        if is_now & ~told.get(step.output, 0):
            told[step.output] = told.get(step.output, 0) | is_now
            changed = True
    return changed


def _is_product(step: Step) -> bool:
    if step.opcode == "custom-call":
        return step.instruction.custom_call_target.startswith(_LIBRARY_PRODUCTS)
    return step.opcode == "dot"


def _depends_on_data(steps: Steps, group: int) -> bool:
    return bool(steps.flow.origin[group] & ROLES & ~(Origin.PARAMS | Origin.OPTIMIZER_STATE))


def _made(step: Step, inputs: dict[int, int]) -> int:
    """What an operation that is no product makes of its operands."""
    first, second = inputs.get(0, 0), inputs.get(1, 0)
    both = 0
    for each in inputs.values():
        both |= each
    if step.opcode == "exponential":
        return _Is.EXPONENTIAL if first & _Is.SCORES else 0
    if step.opcode == "reduce":
        return _Is.SUM if first & (_Is.EXPONENTIAL | _Is.SUM) else 0
    if step.opcode == "broadcast":
        return first & _Is.SUM
    if step.opcode in _MOVING or step.opcode in ("dynamic-slice", "dynamic-update-slice"):
        return both
    if not step.is_elementwise:
        return 0
    kept = both & (_Is.SCORES | _Is.WEIGHTS | _Is.SUM)
    if step.opcode == "divide" and first & _Is.EXPONENTIAL and second & _Is.SUM:
        return kept | _Is.WEIGHTS
    if step.opcode == "multiply" and both & _Is.EXPONENTIAL and both & _Is.SUM:
        return kept | _Is.WEIGHTS  # by the sum's reciprocal
    return kept


def _back_to_scores(steps: Steps, told: dict[int, int], confirmed: Iterable[int]) -> frozenset[int]:
    """The weights that are multiplied again, and what they are made of back to the product of two values."""
    found = set(confirmed)
    for step in reversed(steps.all):
        if step.output in found and step.is_elementwise:
            found.update(group for group in steps.alike(step) if told.get(group))
    return frozenset(found)
