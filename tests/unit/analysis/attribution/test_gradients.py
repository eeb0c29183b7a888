"""What is a gradient of parameters, and what is not."""

from __future__ import annotations

import pytest
from hlo import Step, categories
from hlo_nodes import BACKWARD, FORWARD, PLAIN, UNNAMED, Node, array, f32, tuple_of

from memprof.analysis.records.categories import Category, Role

V = f32(4)
GRADIENTS, COTANGENTS = Category.GRADIENTS, Category.COTANGENTS


class _Training(Step):
    """A step with a parameter, its momentum, an input, and a cotangent that reaches the layer from above."""

    def __init__(self) -> None:
        super().__init__()
        self.w = self.argument("params['w']", Role.PARAMS, V)
        self.m = self.argument("opt.m['w']", Role.OPTIMIZER_STATE, V)
        self.x = self.argument("x", Role.BATCH, V)
        self.y = self.op("y", "multiply", V, [self.w, self.x], FORWARD)
        self.dy = self.op("dy", "multiply", V, [self.y, self.x], BACKWARD)

    def update(self, gradient: Node) -> None:
        """Plain momentum, which ends the step."""
        new_m = self.op("new_m", "add", V, [self.m, gradient], PLAIN)
        self.result(new_m, self.op("new_w", "subtract", V, [self.w, new_m], PLAIN))

    def made(self) -> dict[str, Category]:
        """The categories of what the step makes, without the layer itself."""
        given = {"params['w']", "opt.m['w']", "x", "y", "new_m", "new_w"}
        return {name: category for name, category in categories(self).items() if name not in given}


def test_the_gradient_of_a_layer_is_what_its_update_uses() -> None:
    step = _Training()
    dw = step.op("dw", "dot", V, [step.dy, step.x], BACKWARD)
    dx = step.op("dx", "dot", V, [step.dy, step.w], BACKWARD)  # the same shape as dw, but nothing updates with it
    step.op("below", "multiply", V, [dx, step.x], BACKWARD)
    step.update(dw)
    assert step.made() == {"dy": COTANGENTS, "dw": GRADIENTS, "dx": COTANGENTS, "below": COTANGENTS}


def test_partial_sums_of_a_long_product_are_parts_of_the_gradient() -> None:
    step = _Training()
    # XLA splits the sum over the batch in two, and adds the parts up under the same op name.
    name = "jit(step)/transpose(jvp(Net))/dot_general"
    parts = step.op("parts", "dot", f32(2, 4), [step.dy, step.x], name)
    step.update(step.op("dw", "reduce", V, [parts], name))
    assert step.made() == {"dy": COTANGENTS, "parts": GRADIENTS, "dw": GRADIENTS}


def test_partial_sums_inside_fusions_are_parts_of_the_gradient() -> None:
    step = _Training()
    name = "jit(step)/transpose(jvp(Net))/dot_general"
    product, total = step.computation("product", fused=True), step.computation("total", fused=True)
    product.op("inner_dot", "dot", f32(2, 4), [product.parameter(V), product.parameter(V)], name)
    total.op("inner_sum", "reduce", V, [total.parameter(f32(2, 4))], name)
    parts = step.op("parts", "fusion", f32(2, 4), [step.dy, step.x], name, called=[product])
    step.update(step.op("dw", "fusion", V, [parts], name, called=[total]))
    assert step.made() == {"dy": COTANGENTS, "parts": GRADIENTS, "dw": GRADIENTS}


def test_what_a_bias_gradient_is_summed_from_is_a_cotangent() -> None:
    step = _Training()
    dh = step.op("dh", "multiply", f32(8, 4), [step.dy, step.x], BACKWARD)
    step.update(step.op("db", "reduce", V, [dh], "jit(step)/transpose(jvp(Net))/reduce_sum"))
    assert step.made() == {"dy": COTANGENTS, "dh": COTANGENTS, "db": GRADIENTS}


def test_both_contributions_to_tied_parameters_are_gradients() -> None:
    step = _Training()
    of_input = step.op("of_input", "dot", V, [step.dy, step.x], BACKWARD)
    of_output = step.op("of_output", "dot", V, [step.y, step.dy], BACKWARD)
    step.update(step.op("dw", "add", V, [of_input, of_output], "jit(step)/transpose(jvp(Net))/add_any"))
    assert step.made() == {"dy": COTANGENTS, "of_input": GRADIENTS, "of_output": GRADIENTS, "dw": GRADIENTS}


def test_sums_of_cotangents_are_no_gradients() -> None:
    step = _Training()
    skip = step.op("skip", "multiply", V, [step.dy, step.x], BACKWARD)
    dx = step.op("dx", "add", V, [step.dy, skip], "jit(step)/transpose(jvp(Net))/add_any")
    step.update(step.op("dw", "dot", V, [dx, step.x], BACKWARD))
    assert step.made() == {"dy": COTANGENTS, "skip": COTANGENTS, "dx": COTANGENTS, "dw": GRADIENTS}


@pytest.mark.parametrize(
    "opcode",
    "add subtract negate convert copy transpose reshape reverse slice dynamic-slice concatenate pad scatter"
    " all-reduce all-reduce-start reduce-scatter all-gather all-gather-start".split(),
)
def test_the_same_quantity_in_another_form_is_a_gradient(opcode: str) -> None:
    step = _Training()
    raw = step.op("raw", "dot", V, [step.dy, step.x], BACKWARD)
    step.update(step.op("dw", opcode, V, [raw], BACKWARD))
    assert step.made()["raw"] is GRADIENTS


def test_what_is_copied_or_written_into_a_gradient_is_a_part_of_it() -> None:
    step = _Training()
    raw = step.op("raw", "dot", V, [step.dy, step.x], BACKWARD)
    whole = step.op("whole", "dot", V, [step.dy, step.y], BACKWARD)
    index = step.op("index", "multiply", array("s32"), [step.dy, step.x], BACKWARD)
    written = step.op("written", "dynamic-update-slice", V, [whole, raw, index], BACKWARD, shares=whole)
    start = step.op("start", "copy-start", tuple_of(V, V, array("u32")), [written], BACKWARD, holds=(0, 2))
    step.update(step.op("dw", "copy-done", V, [start], BACKWARD))
    made = step.made()
    assert (made["raw"], made["whole"], made["written"], made["index"]) == (*[GRADIENTS] * 3, COTANGENTS)


@pytest.mark.parametrize("opcode", ["multiply", "dot", "exponential"])
def test_what_a_gradient_is_computed_from_is_a_cotangent(opcode: str) -> None:
    step = _Training()
    raw = step.op("raw", "dot", V, [step.dy, step.x], BACKWARD)
    step.update(step.op("dw", opcode, V, [raw, step.x], BACKWARD))
    assert step.made()["raw"] is COTANGENTS


def test_the_padding_value_and_the_index_of_an_update_are_no_gradients() -> None:
    step = _Training()
    amount = step.op("amount", "multiply", f32(), [step.dy, step.x], BACKWARD)
    raw = step.op("raw", "dot", f32(2), [step.dy, step.x], BACKWARD)
    step.update(step.op("dw", "pad", V, [raw, amount], BACKWARD))
    assert step.made() == {"dy": COTANGENTS, "amount": COTANGENTS, "raw": GRADIENTS, "dw": GRADIENTS}


def test_unnamed_copies_of_a_gradient_are_gradients() -> None:
    step = _Training()
    dw = step.op("dw", "dot", V, [step.dy, step.x], BACKWARD)
    copy = step.op("copy", "copy", V, [dw], UNNAMED)
    step.update(step.op("bitcast", "bitcast", V, [copy]))
    assert step.made() == {"dy": COTANGENTS, "dw": GRADIENTS, "copy": GRADIENTS}


def test_each_output_of_a_fusion_is_judged_by_its_own_use() -> None:
    step = _Training()
    fused = step.computation("fused", fused=True)
    p, q = fused.parameter(V), fused.parameter(V)
    fused.tuple(fused.op("dw", "multiply", V, [p, q], BACKWARD), fused.op("dx", "add", V, [p, q], BACKWARD))
    fusion = step.op("fusion", "fusion", tuple_of(V, V), [step.dy, step.x], BACKWARD, called=[fused])
    step.op("below", "multiply", V, [step.element(fusion, 1), step.x], BACKWARD)
    step.update(step.element(fusion, 0))
    assert step.made() == {"dy": COTANGENTS, "fusion{0}": GRADIENTS, "fusion{1}": COTANGENTS, "below": COTANGENTS}


def test_clipped_gradients_and_their_norm_are_gradients() -> None:
    step = _Training()
    dw = step.op("dw", "dot", V, [step.dy, step.x], BACKWARD)
    squares = step.op("squares", "multiply", V, [dw, dw], PLAIN)
    norm = step.op("norm", "reduce", f32(), [squares], PLAIN)
    step.update(step.op("clipped", "divide", V, [dw, norm], PLAIN))
    assert step.made() == dict.fromkeys(("dw", "squares", "norm", "clipped"), GRADIENTS) | {"dy": COTANGENTS}


@pytest.mark.parametrize("state", ["w", "m"])
def test_after_parameters_or_optimizer_state_come_in_it_is_the_update(state: str) -> None:
    step = _Training()
    dw = step.op("dw", "dot", V, [step.dy, step.x], BACKWARD)
    decayed = step.op("decayed", "add", V, [dw, getattr(step, state)], PLAIN)
    step.update(step.op("scaled", "negate", V, [decayed], PLAIN))
    assert step.made() == {
        "dy": COTANGENTS,
        "dw": GRADIENTS,
        "decayed": Category.UPDATE_TEMPS,
        "scaled": Category.UPDATE_TEMPS,
    }


def test_a_schedule_of_the_optimizer_is_the_update() -> None:
    step = _Training()
    count = step.argument("opt.count", Role.OPTIMIZER_STATE, array("s32"))
    rate = step.op("rate", "convert", f32(), [count], PLAIN)
    dw = step.op("dw", "dot", V, [step.dy, step.x], BACKWARD)
    step.update(step.op("scaled", "multiply", V, [dw, rate], PLAIN))
    made = step.made()
    assert (made["rate"], made["scaled"]) == (Category.UPDATE_TEMPS, Category.UPDATE_TEMPS)


def test_a_schedule_by_a_counter_beside_the_optimizer_belongs_to_the_update_that_uses_it() -> None:
    step = _Training()
    counter = step.argument("step", Role.OTHER_STATE, array("s32"))
    rate = step.op("rate", "convert", f32(), [counter], PLAIN)
    dw = step.op("dw", "dot", V, [step.dy, step.x], BACKWARD)
    decayed = step.op("decayed", "add", V, [dw, step.w], PLAIN)
    step.update(step.op("scaled", "multiply", V, [decayed, rate], PLAIN))
    assert step.made()["rate"] is Category.UPDATE_TEMPS


def _accumulating(step: _Training, zeros: Node) -> None:
    """A loop over minibatches that adds each one's gradient to `zeros`, and the update with the sum."""
    body, condition = step.computation("body"), step.computation("condition")
    loop = step.op("loop", "while", tuple_of(V, V), [step.tuple(zeros, step.x)], called=[body, condition])
    condition.parameter(loop.shape)
    condition.op("less", "constant", array("pred"))
    carried = body.parameter(loop.shape)
    sum_, x = body.element(carried, 0), body.element(carried, 1)
    d_loop = body.op("d_loop", "multiply", V, [x, x], "jit(step)/while/body/transpose(jvp(Net))/mul")
    dw = body.op("dw", "dot", V, [d_loop, x], "jit(step)/while/body/transpose(jvp(Net))/dot_general")
    body.tuple(body.op("sum", "add", V, [sum_, dw], "jit(step)/while/body/add", shares=zeros), x)
    step.update(step.op("mean", "divide", V, [step.element(loop, 0), step.op("n", "constant", f32())], PLAIN))


def test_an_accumulator_over_minibatches_is_a_gradient_from_its_zeros_on() -> None:
    step = _Training()
    _accumulating(step, step.op("zeros", "broadcast", V, [step.op("zero", "constant", f32())], UNNAMED))
    assert step.made() == {
        "dy": COTANGENTS,
        "zero": Category.CONSTANTS,
        "zeros": GRADIENTS,
        "d_loop": COTANGENTS,
        "dw": GRADIENTS,
        "sum": GRADIENTS,
        "less": Category.CONSTANTS,
        "n": Category.CONSTANTS,
        "mean": GRADIENTS,
    }


def test_an_accumulator_that_jax_names_is_a_gradient_too() -> None:
    step = _Training()
    _accumulating(step, step.op("zeros", "broadcast", V, [step.op("zero", "constant", f32())], PLAIN))
    made = step.made()
    assert (made["zeros"], made["sum"], made["dw"]) == (GRADIENTS, GRADIENTS, GRADIENTS)


def test_an_accumulator_in_the_memory_of_a_result_is_counted_as_an_output() -> None:
    step = _Training()
    zeros = step.op("zeros", "broadcast", V, [step.op("zero", "constant", f32())], UNNAMED)
    step.lives_out(zeros)
    _accumulating(step, zeros)
    made = step.made()
    assert (made["zeros"], made["sum"], made["dw"]) == (Category.OUTPUTS, Category.OUTPUTS, GRADIENTS)


def test_the_gradients_of_scanned_layers_are_stacked_up_as_gradients() -> None:
    step = _Training()
    stack = step.op("stack", "broadcast", f32(2, 4), [step.op("zero", "constant", f32())], UNNAMED)
    body, condition = step.computation("body"), step.computation("condition")
    loop = step.op("loop", "while", tuple_of(f32(2, 4), V), [step.tuple(stack, step.dy)], called=[body, condition])
    condition.parameter(loop.shape)
    condition.op("less", "constant", array("pred"))
    carried = body.parameter(loop.shape)
    old, dh = body.element(carried, 0), body.element(carried, 1)
    name = "jit(step)/transpose(jvp(Net))/while/body/op"
    dw = body.op("dw", "dot", V, [dh, dh], name)
    index = body.op("index", "constant", array("s32"))
    pushed = body.op("pushed", "dynamic-update-slice", f32(2, 4), [old, dw, index], name, shares=stack)
    body.tuple(pushed, body.op("next_dh", "multiply", V, [dh, dh], name, shares=step.dy))
    m = step.argument("opt.m['layers']", Role.OPTIMIZER_STATE, f32(2, 4))
    step.result(step.op("new_m", "add", f32(2, 4), [m, step.element(loop, 0)], PLAIN))
    made = categories(step)
    assert {name: made[name] for name in ("stack", "pushed", "dw", "dy", "next_dh")} == {
        "stack": GRADIENTS,
        "pushed": GRADIENTS,
        "dw": GRADIENTS,
        "dy": COTANGENTS,
        "next_dh": COTANGENTS,
    }


def test_gradients_that_are_the_result_of_the_step_are_outputs_made_from_gradients() -> None:
    step = _Training()
    raw = step.op("raw", "dot", array("bf16", 4), [step.dy, step.x], BACKWARD)
    step.result(step.op("dw", "convert", V, [raw], BACKWARD))
    assert step.made() == {"dy": COTANGENTS, "raw": GRADIENTS, "dw": Category.OUTPUTS}


def test_partial_gradients_behind_a_scale_are_parts_of_the_gradient() -> None:
    step = _Training()
    scale = step.argument("scale", Role.OTHER_STATE, f32())
    name = "jit(step)/transpose(jvp(Net))/dot_general"
    parts = step.op("parts", "dot", f32(2, 4), [step.dy, step.x], name)
    whole = step.op("whole", "reduce", V, [parts], name)
    spread = step.op("spread", "broadcast", V, [scale], BACKWARD)
    halved = step.op("halved", "divide", V, [whole, step.op("cast", "convert", V, [spread], BACKWARD)], BACKWARD)
    step.update(step.op("dw", "multiply", V, [spread, halved], BACKWARD))
    made = step.made()
    assert {name: made[name] for name in ("parts", "whole", "halved", "dw")} == dict.fromkeys(
        ("parts", "whole", "halved", "dw"), GRADIENTS
    )
    assert made["spread"] is not GRADIENTS


def test_what_a_gradient_is_multiplied_with_is_none() -> None:
    step = _Training()
    mask = step.op("mask", "multiply", V, [step.dy, step.dy], BACKWARD)
    step.update(step.op("dw", "multiply", V, [step.dy, mask], BACKWARD))
    assert step.made() == {"dy": COTANGENTS, "mask": COTANGENTS, "dw": GRADIENTS}


def test_gradients_of_each_example_that_a_loop_adds_up_are_parts_of_the_gradient() -> None:
    step = _Training()
    zeros = step.op("zeros", "broadcast", f32(2, 4), [step.op("zero", "constant", f32())], UNNAMED)
    body, condition = step.computation("body"), step.computation("condition")
    loop = step.op("loop", "while", tuple_of(f32(2, 4), V), [step.tuple(zeros, step.dy)], called=[body, condition])
    condition.parameter(loop.shape)
    condition.op("less", "constant", array("pred"))
    carried = body.parameter(loop.shape)
    old, dh = body.element(carried, 0), body.element(carried, 1)
    name = "jit(step)/transpose(jvp(Net))/while/body/op"
    each = body.op("each", "dot", f32(2, 4), [dh, dh], name)
    body.tuple(body.op("sum", "add", f32(2, 4), [old, each], name, shares=zeros), dh)
    step.update(step.op("dw", "reduce", V, [step.element(loop, 0)], "jit(step)/transpose(jvp(vmap()))/reduce_sum"))
    made = step.made()
    assert (made["sum"], made["each"], made["dw"]) == (GRADIENTS, GRADIENTS, GRADIENTS)


def test_cotangents_that_a_loop_adds_up_for_a_matrix_product_are_no_gradients_of_the_bias() -> None:
    step = _Training()
    zeros = step.op("zeros", "broadcast", f32(2, 4), [step.op("zero", "constant", f32())], UNNAMED)
    body, condition = step.computation("body"), step.computation("condition")
    loop = step.op("loop", "while", tuple_of(f32(2, 4), V), [step.tuple(zeros, step.dy)], called=[body, condition])
    condition.parameter(loop.shape)
    condition.op("less", "constant", array("pred"))
    carried = body.parameter(loop.shape)
    old, dh = body.element(carried, 0), body.element(carried, 1)
    each = body.op("each", "multiply", f32(2, 4), [dh, dh], "jit(step)/transpose(jvp(Net))/while/body/op")
    name = "jit(step)/transpose(jvp(Net))/while/body/add"
    body.tuple(body.op("sum", "add", f32(2, 4), [old, each], name, shares=zeros), dh)
    added_up = step.element(loop, 0)
    step.op("dw", "dot", V, [added_up, step.x], "jit(step)/transpose(jvp(up))/dot_general")
    step.update(step.op("db", "reduce", V, [added_up], "jit(step)/transpose(jvp(up))/reduce_sum"))
    made = step.made()
    assert (made["sum"], made["db"]) == (COTANGENTS, GRADIENTS)


@pytest.mark.parametrize(("added_to", "category"), [("carried", GRADIENTS), ("itself", COTANGENTS)])
def test_sums_that_a_loop_adds_up_elsewhere_and_copies_back_are_gradients(added_to: str, category: Category) -> None:
    step = _Training()
    zeros = step.op("zeros", "broadcast", f32(2, 4), [step.op("zero", "constant", f32())], UNNAMED)
    body, condition = step.computation("body"), step.computation("condition")
    loop = step.op("loop", "while", tuple_of(f32(2, 4), V), [step.tuple(zeros, step.dy)], called=[body, condition])
    condition.parameter(loop.shape)
    condition.op("less", "constant", array("pred"))
    carried = body.parameter(loop.shape)
    old, dh = body.element(carried, 0), body.element(carried, 1)
    name = "jit(step)/transpose(jvp(Net))/while/body/op"
    each = body.op("each", "dot", f32(2, 4), [dh, dh], name)
    sum_ = body.op("sum", "add", f32(2, 4), [old if added_to == "carried" else each, each], name)
    body.tuple(body.op("back", "copy", f32(2, 4), [sum_], name, shares=zeros), dh)
    step.update(step.op("dw", "reduce", V, [step.element(loop, 0)], "jit(step)/transpose(jvp(vmap()))/reduce_sum"))
    assert step.made()["back"] is category


def test_an_unnamed_product_of_cotangents_makes_no_gradients_of_them() -> None:
    step = _Training()
    dh = step.op("dh", "multiply", V, [step.dy, step.x], BACKWARD)
    step.update(step.op("dw", "dot", V, [step.op("turned", "transpose", V, [dh], UNNAMED), step.x], UNNAMED))
    made = step.made()
    assert (made["dh"], made["turned"]) == (COTANGENTS, COTANGENTS)


def test_a_product_that_is_multiplied_and_summed_up_under_one_name_has_no_partial_sums() -> None:
    step = _Training()
    name = "jit(step)/transpose(jvp(Net))/dot_general"
    products = step.op("products", "multiply", f32(2, 4), [step.dy, step.x], name)
    step.update(step.op("dw", "reduce", V, [products], name))
    assert step.made()["products"] is COTANGENTS
