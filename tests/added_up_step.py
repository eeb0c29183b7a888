"""A step small enough that each of its numbers is added up by hand."""

from __future__ import annotations

from hlo import Step
from hlo_nodes import BACKWARD, FORWARD, PLAIN, array, f32

from memprof.analysis.records.categories import Role

V = f32(4)


def added_up_step() -> Step:
    """A step with donated state, of which every number can be added up by hand.

    Outside the temp block: three arguments of 16 bytes, a constant of 8, a result of 4. In it: h (16 bytes), t (32,
    dies as soon as dw is made), dw (16), dx (8).
    """
    step = Step()
    line = step.frame("model.py", 12)
    w = step.argument("params['a']['w']", Role.PARAMS, V, donated=True)
    w.frame = line  # the line of an argument tells nothing of its own
    m = step.argument("opt.m['a']['w']", Role.OPTIMIZER_STATE, V, donated=True)
    x = step.argument("x", Role.BATCH, V)
    c = step.op("c", "constant", f32(2))
    h = step.op("h", "multiply", V, [w, x], "jit(step)/jvp(Net)/a/mul", frame=line)
    t = step.op("t", "dot", f32(8), [h, h], FORWARD)
    loss = step.op("loss", "reduce", f32(), [t, c], FORWARD)
    dw = step.op("dw", "multiply", V, [h, x], BACKWARD)
    step.free(t, after=dw)
    step.op("dx", "multiply", array("bf16", 4), [h, w], BACKWARD)
    new_m = step.op("new_m", "add", V, [m, dw], PLAIN, shares=m)
    new_w = step.op("new_w", "subtract", V, [w, new_m], PLAIN, shares=w)
    step.result(new_w, new_m, loss)
    return step
