"""A step by hand as XLA plans it for a card that is too small, and for a card with ample memory.

analyze(pressed("first.remat")).pressure  # one value is recomputed
"""

from __future__ import annotations

from dataclasses import replace

from hlo import Step
from hlo_nodes import BACKWARD, FORWARD, Node, f32

from memprof.analysis.records.capture import Capture, Target
from memprof.analysis.records.categories import Role

MIB = 1 << 20
CARD = Target(
    name="small", description="", platform="cuda", memory_bytes=10 * MIB, compute_capability="9.0", reason="", file=None
)


def product(step: Step, name: str, left: Node, right: Node, op_name: str) -> Node:
    """A fusion of one matrix product, 512 x 1024 by 1024 x 512: 2 x 512 x 512 x 1024 operations, 1 MiB."""
    inside = step.computation(f"{name}.computation", fused=True)
    operands = [inside.parameter(each.shape) for each in (left, right)]
    inside.op(f"{name}.dot", "dot", f32(512, 512), operands, op_name, contracting=(1,))
    return step.op(name, "fusion", f32(512, 512), [left, right], op_name, called=[inside])


FLOPS = 2 * 512 * 512 * 1024


def plan(*recomputed: str) -> Capture:
    """A step with a value of 1 MiB for each of two layers; `recomputed` are clones that are made once more."""
    step = Step()
    w = step.argument("params['w']", Role.PARAMS, f32(1024, 512))
    x = step.argument("x", Role.BATCH, f32(512, 1024))
    first = product(step, "first", x, w, FORWARD)
    second = product(step, "second", x, w, FORWARD)
    if recomputed:
        last = step.op("sum", "add", f32(512, 512), [first, second], FORWARD)
        step.free(first, second, after=last)
        values = [product(step, name, x, w, FORWARD) for name in recomputed]
        last = step.op("last", "multiply", f32(512, 512), [last, values[0]], BACKWARD)
    else:
        last = step.op("sum", "add", f32(512, 512), [first, second], FORWARD)
        last = step.op("last", "multiply", f32(512, 512), [last, first], BACKWARD)
        more = step.op("more", "concatenate", f32(2048, 512), [last] * 4, BACKWARD)
        last = step.op("less", "slice", f32(512, 512), [more], BACKWARD)
    step.result(last)
    return replace(step.capture(), target=CARD)


def pressed(*recomputed: str) -> Capture:
    """The plan for a card that is too small, with the plan without a limit."""
    return replace(plan(*recomputed), proto_without_limit=plan().hlo_proto)
