"""Where the backward pass ends, on programs of a few instructions."""

from __future__ import annotations

from hlo import Step
from hlo_nodes import BACKWARD, FORWARD, PLAIN, Node, f32

from memprof.analysis.categories import Role
from memprof.analysis.pipeline import analyze


def _last(step: Step) -> str:
    """The instruction at which the backward pass ends, by its name."""
    end = analyze(step.capture()).program.backward_end
    return [node.name for node in step.nodes][end] if end >= 0 else ""


def _product(step: Step) -> tuple[Node, Node, Node]:
    w = step.argument("params['w']", Role.PARAMS, f32(8, 8))
    x = step.argument("x", Role.BATCH, f32(8, 8))
    return w, x, step.op("h", "dot", f32(8, 8), [x, w], FORWARD)


def _updated(step: Step, w: Node, gradient: Node) -> None:
    stacked = step.op("stacked", "concatenate", f32(16, 8), [gradient, gradient], PLAIN)
    halved = step.op("halved", "slice", f32(8, 8), [stacked], PLAIN)
    step.result(step.op("new_w", "subtract", f32(8, 8), [w, halved], PLAIN))


def test_parts_of_a_split_product_and_their_sum_are_backward_work() -> None:
    step = Step()
    w, x, h = _product(step)
    parts = step.op("parts", "dot", f32(4, 8, 8), [x, h], BACKWARD)
    zero = step.op("zero", "constant", f32())
    gradient = step.op("sum", "reduce", f32(8, 8), [parts, zero], BACKWARD)
    _updated(step, w, gradient)
    assert _last(step) == "sum"


def test_a_product_that_is_fused_with_the_update_is_backward_work() -> None:
    step = Step()
    w, x, h = _product(step)
    fused = step.computation("fused", fused=True)
    of_x, of_h = fused.parameter(f32(8, 8)), fused.parameter(f32(8, 8))
    product = fused.op("product", "dot", f32(8, 8), [of_x, of_h], BACKWARD)
    fused.op("clipped", "negate", f32(8, 8), [product], PLAIN)
    gradient = step.op("fusion", "fusion", f32(8, 8), [x, h], PLAIN, called=[fused])
    _updated(step, w, gradient)
    assert _last(step) == "fusion"


def test_a_cheap_end_of_the_backward_pass_that_is_fused_into_the_update_is_none() -> None:
    step = Step()
    w, x, h = _product(step)
    gradient = step.op("gradient", "dot", f32(8, 8), [x, h], BACKWARD)
    fused = step.computation("fused", fused=True)
    inner = fused.parameter(f32(8, 8))
    scaled = fused.op("scaled", "negate", f32(8, 8), [inner], BACKWARD)
    fused.op("clipped", "negate", f32(8, 8), [scaled], PLAIN)
    update = step.op("fusion", "fusion", f32(8, 8), [gradient], PLAIN, called=[fused])
    _updated(step, w, update)
    assert _last(step) == "gradient"


def test_a_step_that_is_not_differentiated_has_no_backward_pass() -> None:
    step = Step()
    _, _, h = _product(step)
    step.result(h)
    assert _last(step) == ""
