"""What the forward pass leaves for the backward pass, by whatever way it gets there."""

from __future__ import annotations

import pytest
from hlo import Step, categories, values
from hlo_nodes import BACKWARD, FORWARD, PLAIN, RECOMPUTED, UNNAMED, Computation, Node, array, f32, tuple_of

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Category, Phase, Role

V = f32(4)
ACTIVATIONS, FORWARD_TEMPS = Category.ACTIVATIONS, Category.FORWARD_TEMPS


class _Forward(Step):
    """A step whose forward pass makes `h` from a parameter and an input."""

    def __init__(self) -> None:
        super().__init__()
        self.w = self.argument("params['w']", Role.PARAMS, V)
        self.x = self.argument("x", Role.BATCH, V)
        self.h = self.op("h", "multiply", V, [self.w, self.x], FORWARD)

    def backward(self, used: Node) -> None:
        """The backward pass uses a value, and the step ends."""
        self.result(self.op("dx", "multiply", V, [used, self.x], BACKWARD))

    def made(self, *names: str) -> tuple[Category, ...]:
        found = categories(self)
        return tuple(found[name] for name in names)


def test_a_value_that_the_forward_pass_alone_uses_dies_in_it() -> None:
    step = _Forward()
    y = step.op("y", "negate", V, [step.h], FORWARD)
    step.backward(y)
    assert step.made("h", "y") == (FORWARD_TEMPS, ACTIVATIONS)


def test_a_value_is_kept_through_tuples_and_bitcasts() -> None:
    step = _Forward()
    packed = step.tuple(step.x, step.op("view", "bitcast", V, [step.h]))
    step.backward(step.op("barrier", "optimization-barrier", V, [step.element(packed, 1)]))
    assert step.made("h") == (ACTIVATIONS,)


def test_a_value_is_kept_through_copies_that_the_compiler_inserts() -> None:
    step = _Forward()
    start = step.op("start", "copy-start", tuple_of(V, V, array("u32")), [step.h], UNNAMED, holds=(0, 2))
    done = step.op("done", "copy-done", V, [start])
    copy = step.op("copy", "copy", V, [done], UNNAMED)
    step.backward(step.op("padded", "pad", V, [copy], UNNAMED))
    assert step.made("h", "start{0}", "copy", "padded") == (ACTIVATIONS,) * 4


def test_a_copy_that_the_forward_pass_alone_uses_is_a_temporary_of_it() -> None:
    step = _Forward()
    copy = step.op("copy", "copy", V, [step.h], UNNAMED)
    step.backward(step.op("y", "negate", V, [copy], FORWARD))
    assert step.made("h", "copy") == (FORWARD_TEMPS, FORWARD_TEMPS)


@pytest.mark.parametrize("opcode", ["copy", "transpose", "reshape"])
def test_a_change_of_layout_for_the_backward_pass_keeps_what_it_reads(opcode: str) -> None:
    step = _Forward()
    step.backward(step.op("layout", opcode, V, [step.h], FORWARD))
    assert step.made("h", "layout") == (ACTIVATIONS, ACTIVATIONS)


def test_what_the_backward_pass_computes_again_from_is_kept() -> None:
    step = _Forward()
    again = step.op("again", "exponential", V, [step.h], RECOMPUTED)
    copy = step.op("copy", "copy", V, [again], UNNAMED)
    step.backward(copy)
    assert step.made("h", "again", "copy") == (ACTIVATIONS, Category.RECOMPUTED, Category.RECOMPUTED)


def test_an_operation_of_the_forward_pass_repeated_inside_a_backward_fusion_keeps_what_it_reads() -> None:
    step = _Forward()
    step.op("gelu", "tanh", V, [step.h], FORWARD)
    fused = step.computation("fused", fused=True)
    p, q = fused.parameter(V), fused.parameter(V)
    again = fused.op("gelu_again", "tanh", V, [p], FORWARD)
    fused.op("dh", "multiply", V, [again, q], BACKWARD)
    step.result(step.op("fusion", "fusion", V, [step.h, step.x], BACKWARD, called=[fused]))
    # gelu is computed twice rather than kept: h is.
    assert step.made("h", "gelu") == (ACTIVATIONS, FORWARD_TEMPS)


def test_an_operation_of_the_forward_pass_inside_a_forward_fusion_keeps_nothing_but_its_result() -> None:
    step = _Forward()
    fused = step.computation("fused", fused=True)
    inner = fused.op("inner", "tanh", V, [fused.parameter(V)], FORWARD)
    fused.op("root", "negate", V, [inner], FORWARD)
    step.backward(step.op("fusion", "fusion", V, [step.h], FORWARD, called=[fused]))
    assert step.made("h", "fusion") == (FORWARD_TEMPS, ACTIVATIONS)


def test_each_output_of_a_forward_fusion_is_judged_by_its_own_use() -> None:
    step = _Forward()
    fused = step.computation("fused", fused=True)
    p = fused.parameter(V)
    fused.tuple(fused.op("a", "negate", V, [p], FORWARD), fused.op("b", "exponential", V, [p], FORWARD))
    fusion = step.op("fusion", "fusion", tuple_of(V, V), [step.h], FORWARD, called=[fused])
    step.op("loss", "reduce", f32(), [step.element(fusion, 0)], FORWARD)
    step.backward(step.element(fusion, 1))
    assert step.made("fusion{0}", "fusion{1}", "loss") == (FORWARD_TEMPS, ACTIVATIONS, FORWARD_TEMPS)


def _scan(step: Step, name: str, initial: list[Node]) -> tuple[Computation, list[Node], Node]:
    """A loop's body, what it carries, and the loop."""
    body, condition = step.computation(f"{name}.body"), step.computation(f"{name}.condition")
    shape = tuple_of(*(node.shape for node in initial))
    loop = step.op(name, "while", shape, [step.tuple(*initial)], called=[body, condition])
    condition.parameter(shape)
    condition.op(f"{name}.less", "constant", array("pred"))
    carried = body.parameter(shape)
    return body, [body.element(carried, number) for number in range(len(initial))], loop


def test_what_a_scan_stacks_up_for_the_backward_scan_is_kept_and_what_it_carries_is_not() -> None:
    step = _Forward()
    stack = step.op("stack", "broadcast", f32(2, 4), [step.op("zero", "constant", f32())], UNNAMED)
    body, (old, h), loop = _scan(step, "forward", [stack, step.h])
    index = body.op("index", "constant", array("s32"))
    name = "jit(step)/jvp(Net)/while/body/op"
    pushed = body.op("pushed", "dynamic-update-slice", f32(2, 4), [old, h, index], name, shares=stack)
    body.tuple(pushed, body.op("next_h", "tanh", V, [h], name, shares=step.h))

    back, (residuals, d), _ = _scan(
        step, "backward", [step.element(loop, 0), step.op("d", "copy", V, [step.x], BACKWARD)]
    )
    back_index = back.op("back_index", "constant", array("s32"))
    name = "jit(step)/transpose(jvp(Net))/while/body/op"
    residual = back.op("residual", "dynamic-slice", V, [residuals, back_index], name)
    back.tuple(residuals, back.op("dh", "multiply", V, [d, residual], name))
    step.result(step.element(step.nodes[-1], 1))
    assert step.made("stack", "pushed", "h", "next_h") == (ACTIVATIONS, ACTIVATIONS, FORWARD_TEMPS, FORWARD_TEMPS)
    # What the backward scan takes off the stack holds what the forward scan has computed.
    assert step.made("residual", "d", "dh") == (ACTIVATIONS, Category.COTANGENTS, Category.COTANGENTS)


def test_a_stack_of_the_forward_pass_that_starts_from_the_zeros_of_a_loop_of_the_backward_pass() -> None:
    step = _Forward()
    zero = step.op("zero", "constant", f32())
    zeros = step.op("zeros", "broadcast", f32(2, 4), [zero], "jit(step)/transpose(jvp(Net))/broadcast_in_dim")
    stack = step.op("stack", "copy", f32(2, 4), [zeros], UNNAMED)
    body, (old, h), loop = _scan(step, "forward", [stack, step.h])
    index = body.op("index", "constant", array("s32"))
    name = "jit(step)/jvp(Net)/while/body/op"
    body.tuple(body.op("pushed", "dynamic-update-slice", f32(2, 4), [old, h, index], name, shares=stack), h)

    back, (sums, residuals), _ = _scan(step, "backward", [zeros, step.element(loop, 0)])
    name = "jit(step)/transpose(jvp(Net))/while/body/op"
    back.tuple(back.op("sum", "multiply", f32(2, 4), [sums, residuals], name, shares=zeros), residuals)
    step.result(step.element(step.nodes[-1], 0))
    assert step.made("stack", "pushed", "sum") == (ACTIVATIONS, ACTIVATIONS, Category.COTANGENTS)


def test_masked_weights_are_weights_and_a_masked_activation_is_none() -> None:
    step = _Forward()
    mask = step.argument("mask", Role.OTHER_STATE, array("pred", 4))
    weights = step.op(
        "weights",
        "select",
        V,
        [mask, step.w, step.op("zero", "broadcast", V, [step.op("0", "constant", f32())])],
        FORWARD,
    )
    masked = step.op("masked", "select", V, [mask, step.h, weights], FORWARD)
    step.backward(step.op("dy", "multiply", V, [weights, masked], BACKWARD))
    assert step.made("weights", "masked") == (Category.PARAM_COPIES, ACTIVATIONS)


def test_an_input_cast_before_differentiation_belongs_to_the_pass_that_uses_it() -> None:
    for last, expected in ((FORWARD, FORWARD_TEMPS), (BACKWARD, ACTIVATIONS)):
        step = _Forward()
        cast = step.op("cast", "convert", array("bf16", 4), [step.x], PLAIN)
        y = step.op("y", "multiply", V, [step.h, cast], FORWARD)
        step.op("late", "multiply", V, [cast, y], last)
        step.backward(y)
        assert step.made("cast") == (expected,)


def test_an_input_that_the_compiler_pads_for_the_backward_pass_alone_is_a_cotangent() -> None:
    step = _Forward()
    step.backward(step.op("padded", "pad", V, [step.x], UNNAMED))
    assert step.made("padded") == (Category.COTANGENTS,)


def test_metrics_after_the_forward_pass_are_temporaries_of_it() -> None:
    step = _Forward()
    step.op("accuracy", "reduce", f32(), [step.h], PLAIN)
    step.backward(step.h)
    assert step.made("accuracy") == (FORWARD_TEMPS,)


def test_a_value_with_names_of_both_passes_is_the_forward_passes() -> None:
    step = _Forward()
    both = step.op("both", "tanh", V, [step.h], f"{BACKWARD};{FORWARD}")
    step.backward(both)
    assert step.made("both") == (ACTIVATIONS,)


def test_a_random_mask_is_kept_although_it_depends_on_a_key_alone() -> None:
    step = _Forward()
    key = step.argument("rng", Role.OTHER_STATE, array("u32", 2))
    bits = step.op("bits", "rng-bit-generator", array("u32", 4), [key], FORWARD)
    mask = step.op("mask", "compare", array("pred", 4), [bits], FORWARD)
    step.op("dropped", "multiply", V, [step.h, mask], FORWARD)
    step.backward(mask)
    assert step.made("bits", "mask", "dropped") == (FORWARD_TEMPS, ACTIVATIONS, FORWARD_TEMPS)


@pytest.mark.parametrize("opcode", ["copy", "transpose", "reshape", "slice", "reverse"])
def test_what_the_backward_pass_only_puts_elsewhere_is_what_the_forward_pass_has_computed(opcode: str) -> None:
    step = _Forward()
    moved = step.op("moved", opcode, V, [step.h], BACKWARD)
    step.backward(moved)
    assert step.made("h", "moved") == (ACTIVATIONS, ACTIVATIONS)


def test_what_the_backward_pass_only_puts_elsewhere_is_what_it_has_computed_itself() -> None:
    step = _Forward()
    again = step.op("again", "negate", V, [step.h], RECOMPUTED)
    dy = step.op("dy", "negate", V, [step.x], BACKWARD)
    moved = [step.op(f"moved_{node.name}", "transpose", V, [node], BACKWARD) for node in (again, dy, step.w)]
    product = step.op("product", "multiply", V, moved[:2], BACKWARD)
    step.backward(step.op("sum", "multiply", V, [product, moved[2]], BACKWARD))
    assert step.made("moved_again", "moved_dy", "moved_params['w']") == (
        Category.RECOMPUTED,
        Category.COTANGENTS,
        Category.PARAM_COPIES,
    )


@pytest.mark.parametrize("op_name", [FORWARD, UNNAMED])
@pytest.mark.parametrize("dies", ["before the backward pass", "in it"])
def test_a_value_is_kept_only_if_it_lives_on_in_the_backward_pass(op_name: str, dies: str) -> None:
    step = _Forward()
    layout = step.op("layout", "transpose", V, [step.h], op_name)
    later = step.op("later", "negate", V, [layout], FORWARD)
    d = step.op("d", "multiply", V, [later, step.x], BACKWARD)
    step.free(step.h, after=layout if dies == "before the backward pass" else d)
    step.result(step.op("dx", "multiply", V, [layout, d], BACKWARD))
    buffers = {buffer.name: buffer.category for buffer in analyze(step.capture()).temp_buffers}
    kept = FORWARD_TEMPS if dies == "before the backward pass" else ACTIVATIONS
    assert (buffers["h"], buffers["layout"]) == (kept, ACTIVATIONS)


def test_a_value_that_the_first_operation_of_the_backward_pass_overwrites_is_kept() -> None:
    step = _Forward()
    d = step.op("d", "multiply", V, [step.h, step.x], BACKWARD, shares=step.h)
    step.result(step.op("dx", "multiply", V, [d, step.x], BACKWARD))
    buffers = {buffer.name: buffer.category for buffer in analyze(step.capture()).temp_buffers}
    assert buffers["h"] is ACTIVATIONS


def test_what_the_compiler_computes_anew_for_the_backward_pass_alone_is_no_activation() -> None:
    step = _Forward()  # the gradient of max pooling: without a name, of values of the forward pass
    highest = step.op("highest", "reduce-window", V, [step.h], UNNAMED)
    step.backward(highest)
    assert step.made("h", "highest") == (ACTIVATIONS, Category.COTANGENTS)


# Outside differentiation


def test_shuffled_data_are_kept_for_the_backward_pass_and_what_they_are_taken_from_is_not() -> None:
    step = _Forward()
    rollout = step.op("rollout", "multiply", V, [step.w, step.x], PLAIN)
    minibatch = step.op("minibatch", "gather", V, [rollout], PLAIN)
    step.op("y", "multiply", V, [step.h, minibatch], FORWARD)
    step.backward(minibatch)
    found = values(step)
    assert [found[name].phase for name in ("rollout", "minibatch")] == [Phase.UNDIFFERENTIATED] * 2
    assert step.made("rollout", "minibatch") == (FORWARD_TEMPS, ACTIVATIONS)


@pytest.mark.parametrize(("other", "phase"), [(Role.OTHER_STATE, Phase.UNDIFFERENTIATED), (Role.PARAMS, Phase.UPDATE)])
def test_parameters_with_noise_are_made_outside_differentiation(other: Role, phase: Phase) -> None:
    """What the update alone reads belongs to it if it is made of parameters alone; a random key is none of them."""
    step = _Forward()
    key = step.argument("other", other, array("u32", 4))
    bits = step.op("bits", "custom-call", V, [key], PLAIN)
    noisy = step.op("noisy", "add", V, [step.w, bits], PLAIN)
    dw = step.op("dw", "multiply", V, [step.h, step.x], BACKWARD)
    step.result(step.op("new_w", "subtract", V, [noisy, dw], PLAIN))
    assert values(step)["noisy"].phase is phase


def test_what_nothing_reads_of_an_operation_outside_differentiation_is_explained() -> None:
    """`jax.random.permutation` sorts by random bits, and only the order is read (PPO on a v5e, libtpu 0.0.50)."""
    step = _Forward()
    key = step.argument("rng", Role.OTHER_STATE, f32(4))
    both = step.op("sort", "sort", tuple_of(V, V), [key, key], PLAIN)
    order = step.element(both, 1)
    minibatch = step.op("minibatch", "gather", V, [step.x, order], PLAIN)
    step.backward(step.op("y", "multiply", V, [step.h, minibatch], FORWARD))
    found = [buffer for buffer in analyze(step.capture()).temp_buffers if buffer.name == "sort"]
    assert [buffer.phase for buffer in found] == [Phase.UNDIFFERENTIATED] * 2
    assert [buffer.category for buffer in found] == [FORWARD_TEMPS] * 2


def test_a_metric_of_new_parameters_is_no_update() -> None:
    step = _Forward()
    data = step.argument("validation", Role.BATCH, f32(2, 4))
    moment = step.argument("opt.m['w']", Role.OPTIMIZER_STATE, V)
    dw = step.op("dw", "multiply", V, [step.h, step.x], BACKWARD)
    new_moment = step.op("new_moment", "add", V, [moment, dw], PLAIN)
    masked = step.op("masked", "multiply", V, [new_moment, step.op("data_mean", "reduce", V, [data], PLAIN)], PLAIN)
    new_w = step.op("new_w", "subtract", V, [step.w, masked], PLAIN)
    logits = step.op("logits", "dot", f32(2, 8), [data, new_w], PLAIN)
    step.result(new_w, new_moment, step.op("accuracy", "reduce", f32(), [logits], PLAIN))
    found = values(step)
    phases = [found[name].phase for name in ("masked", "logits", "accuracy")]
    assert phases == [Phase.UPDATE, Phase.UNDIFFERENTIATED, Phase.UNDIFFERENTIATED]
    assert step.made("masked", "logits") == (Category.UPDATE_TEMPS, FORWARD_TEMPS)


def test_a_sampler_has_neither_gradients_nor_activations() -> None:
    """A position moved along the gradient of its density: nothing is trained, so nothing is kept for an update."""
    step = Step()
    position = step.argument("position", Role.OTHER_STATE, f32(4))
    x = step.argument("x", Role.BATCH, f32(4))
    key = step.op("key", "negate", f32(4), [position], "jit(step)/vmap()/neg")
    density = step.op("density", "multiply", f32(4), [key, x], "jit(step)/jvp()/mul")
    gradient = step.op("gradient", "multiply", f32(4), [density, key], "jit(step)/transpose(jvp())/mul")
    momentum = step.op("momentum", "add", f32(4), [gradient, position], "jit(step)/add")
    step.result(step.op("moved", "multiply", f32(4), [momentum, x], "jit(step)/mul"))
    found = categories(step)
    assert {name: found[name] for name in ("key", "momentum", "gradient", "density")} == {
        "key": Category.FORWARD_TEMPS,
        "momentum": Category.FORWARD_TEMPS,
        "gradient": Category.COTANGENTS,
        "density": Category.ACTIVATIONS,
    }
