"""Trip counts of loops for which XLA records none, computed from the constants of the loop counter.

XLA records trip counts for GPUs and CPUs, but not for TPUs (libtpu 0.0.42 to 0.0.50). A loop from `jax.lax.scan` or
`fori_loop` increments an integer: it starts at a constant, each iteration adds a constant, and the loop runs while the
integer is less than a constant. Other loops get no trip count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import DecodeError

from memprof.analysis.hlo.hlo_proto import Literal

_PASSES_ON = frozenset({"bitcast", "copy"})
_MAX_TRIP_COUNT = 10**18


def trip_count(loop: Any, around: Any, computations: Mapping[int, Any]) -> int | None:
    """Return the trip count of a loop; None if its constants do not determine it.

    Args:
        loop: a `while`, as an `HloInstructionProto`.
        around: the computation that contains it.
        computations: all computations of the program, by their numbers.
    """
    if len(loop.called_computation_ids) != 2 or len(loop.operand_ids) != 1:
        return None
    inside, test = (computations.get(number) for number in loop.called_computation_ids)
    if inside is None or test is None:
        return None
    in_test, in_body, outside = map(_by_id, (test, inside, around))
    compared = in_test.get(test.root_id)
    if compared is None or compared.opcode != "compare" or compared.comparison_direction != "LT":
        return None
    counter, bound = (in_test.get(each) for each in compared.operand_ids)
    if counter is None or counter.opcode != "get-tuple-element":
        return None
    place = counter.tuple_index
    first = _constant(_element(outside.get(loop.operand_ids[0]), place, outside), outside)
    step = _step(_element(in_body.get(inside.root_id), place, in_body), place, in_body)
    last = _constant(bound, in_test)
    if first is None or step is None or last is None or step < 1:
        return None
    return min(max(-(-(last - first) // step), 0), _MAX_TRIP_COUNT)


def _by_id(computation: Any) -> dict[int, Any]:
    return {instruction.id: instruction for instruction in computation.instructions}


def _element(made: Any, place: int, around: Mapping[int, Any]) -> Any:
    """Return the instruction that makes an element of a tuple."""
    if made is None or made.opcode != "tuple" or not 0 <= place < len(made.operand_ids):
        return None
    return around.get(made.operand_ids[place])


def _step(update: Any, place: int, body: Mapping[int, Any]) -> int | None:
    """Return the increment of the counter per iteration."""
    update = _original(update, body)
    if update is None or update.opcode != "add" or len(update.operand_ids) != 2:
        return None
    operands = [_original(body.get(each), body) for each in update.operand_ids]
    counters = [each for each in operands if each is not None and each.opcode == "get-tuple-element"]
    if len(counters) != 1 or counters[0].tuple_index != place:
        return None
    return next((_constant(each, body) for each in operands if each is not counters[0]), None)


def _original(made: Any, around: Mapping[int, Any]) -> Any:
    """Return the source of a value that is only passed on, within one computation."""
    for _ in range(len(around)):
        if made is None or made.opcode not in _PASSES_ON or len(made.operand_ids) != 1:
            break
        made = around.get(made.operand_ids[0])
    return made


def _constant(made: Any, around: Mapping[int, Any]) -> int | None:
    """Return the value of an integer constant."""
    made = _original(made, around)
    if made is None or made.opcode != "constant":
        return None
    try:
        literal = Literal.FromString(made.literal)
    except DecodeError:
        return None
    values = (*literal.s32s, *literal.s64s, *literal.u32s, *literal.u64s)
    return values[0] if len(values) == 1 else None
