"""Attentions, softmaxes, arrays that can be cut, and where the backward pass ends: programs of a few instructions."""

from __future__ import annotations

import pytest
from hlo import Step
from hlo_nodes import BACKWARD, FORWARD, PLAIN, Node, array, f32

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Role

S = f32(8, 8)  # a number for each query and key
ROW = f32(8)


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


class _Attending(Step):
    """Queries, keys and values of an input, and what is made of the scores; all arrays are equally large."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = [self.argument(f"params['{name}']", Role.PARAMS, S) for name in ("q", "k", "v")]
        self.x = self.argument("x", Role.BATCH, S)
        self.q, self.k, self.v = (
            self.op(name, "dot", S, [self.x, w], FORWARD) for name, w in zip("qkv", self.weights, strict=True)
        )

    def softmax(self, scores: Node, *, by_reciprocal: bool = False) -> Node:
        """exp(scores) / sum(exp(scores)), as XLA writes it."""
        exp = self.op("exp", "exponential", S, [scores], FORWARD)
        turned = self.op("turned", "transpose", S, [exp], FORWARD)
        sums = self.op("sums", "reduce", ROW, [turned, self.op("zero", "constant", f32())], FORWARD)
        if by_reciprocal:
            one = self.op("ones", "broadcast", ROW, [self.op("one", "constant", f32())], FORWARD)
            sums = self.op("reciprocal", "divide", ROW, [one, sums], FORWARD)
        spread = self.op("spread", "broadcast", S, [sums], FORWARD)
        return self.op("weights", "multiply" if by_reciprocal else "divide", S, [exp, spread], FORWARD)

    def marked(self, field: str) -> set[str]:
        """The arrays of which the report says this."""
        buffers = analyze(self.capture()).temp_buffers
        return {buffer.name for buffer in buffers if getattr(buffer, field)}


_SOFTMAX = {"scores", "halved", "exp", "turned", "weights"}


@pytest.mark.parametrize("by_reciprocal", [False, True])
@pytest.mark.parametrize("target", ["", "__cublas$gemm"])
def test_an_attention_is_a_softmax_between_two_products_and_its_cotangents(by_reciprocal: bool, target: str) -> None:
    step = _Attending()
    product = "custom-call" if target else "dot"
    scores = step.op("scores", product, S, [step.q, step.k], FORWARD, target=target)
    half = step.op("half", "broadcast", S, [step.op("c", "constant", f32())], FORWARD)
    halved = step.op("halved", "multiply", S, [scores, half], FORWARD)
    weights = step.softmax(halved, by_reciprocal=by_reciprocal)
    attended = step.op("attended", product, S, [weights, step.v], FORWARD, target=target)
    dy = step.op("dy", "negate", S, [attended], BACKWARD)
    d_weights = step.op("d_weights", "dot", S, [dy, step.v], BACKWARD)
    d_exp = step.op("d_exp", "multiply", S, [d_weights, weights], BACKWARD)
    dq = step.op("dq", "dot", S, [d_exp, step.k], BACKWARD)
    dw = step.op("dw", "dot", S, [step.x, dq], BACKWARD)
    step.result(step.op("new_q", "subtract", S, [step.weights[0], dw], PLAIN))
    assert step.marked("is_of_attention") == _SOFTMAX | {"d_weights", "d_exp"}
    assert step.marked("is_of_softmax") == _SOFTMAX | {"d_weights", "d_exp"}


def test_a_softmax_over_pairs_without_a_second_product_is_no_attention() -> None:
    step = _Attending()
    weights = step.softmax(step.op("scores", "dot", S, [step.q, step.k], FORWARD))
    # A product with the weights in the backward pass is none of an attention, nor is one with parameters.
    step.op("projected", "dot", S, [weights, step.weights[2]], FORWARD)
    dq = step.op("dq", "dot", S, [weights, step.k], BACKWARD)
    step.result(step.op("dw", "dot", S, [step.x, dq], BACKWARD))
    assert step.marked("is_of_attention") == set()
    assert step.marked("is_of_softmax") == _SOFTMAX - {"halved"}


def test_a_sum_of_something_else_than_exponentials_is_no_softmax() -> None:
    step = _Attending()
    cosine = step.op("cosine", "cosine", S, [step.q], FORWARD)
    sums = step.op("sums", "reduce", ROW, [cosine, step.op("zero", "constant", f32())], FORWARD)
    exp = step.op("exp", "exponential", S, [step.k], FORWARD)
    step.op("turned", "transpose", S, [exp], FORWARD)  # nobody sums it
    step.result(step.op("dx", "negate", ROW, [sums], BACKWARD))
    assert step.marked("is_of_softmax") == set()


@pytest.mark.parametrize("moved", [(), ("transpose",), ("convert", "reshape")])
def test_exponentials_that_are_summed_are_a_softmax_as_they_are_or_moved(moved: tuple[str, ...]) -> None:
    step = _Attending()
    last = step.op("exp", "exponential", S, [step.k], FORWARD)
    for opcode in moved:
        last = step.op(opcode, opcode, S, [last], FORWARD)
    sums = step.op("sums", "reduce", ROW, [last, step.op("zero", "constant", f32())], FORWARD)
    step.result(step.op("dx", "negate", ROW, [sums], BACKWARD))
    assert step.marked("is_of_softmax") == {"k", "exp", *moved}


def test_a_product_with_weights_or_without_a_softmax_is_no_attention() -> None:
    step = _Attending()
    weights = step.softmax(step.op("scores", "dot", S, [step.x, step.weights[1]], FORWARD))
    step.op("attended", "dot", S, [weights, step.v], FORWARD)
    squares = step.op("squares", "dot", S, [step.q, step.k], FORWARD)
    again = step.op("again", "dot", S, [step.op("tanh", "tanh", S, [squares], FORWARD), step.v], FORWARD)
    step.result(step.op("dx", "negate", S, [again], BACKWARD))
    assert step.marked("is_of_attention") == set()


def _families(step: Step) -> set[frozenset[str]]:
    """The arrays that would be cut together."""
    numbers: dict[int, set[str]] = {}
    for buffer in analyze(step.capture()).temp_buffers:
        numbers.setdefault(buffer.family, set()).add(buffer.name)
    return {frozenset(names) for number, names in numbers.items() if number}


class _Layer(Step):
    """Two products of an input with weights, one after the other, with `between` made of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = (self.argument(f"params['{name}']", Role.PARAMS, f32(4, 4)) for name in "wu")
        self.x = self.argument("x", Role.BATCH, f32(64, 4))
        self.h = self.op("h", "dot", f32(64, 4), [self.x, self.w], FORWARD)
        self.zero = self.op("zero", "constant", f32())

    def ends(self, last: Node) -> set[frozenset[str]]:
        """The families of the step that makes `last` its loss and goes back to the first product."""
        y = self.op("y", "dot", f32(64, 4), [last, self.u], FORWARD)
        dh = self.op("dh", "multiply", f32(64, 4), [y, self.h], BACKWARD)
        self.result(self.op("dw", "dot", f32(4, 4), [self.x, dh], BACKWARD))
        return _families(self)


def test_what_is_made_element_by_element_and_its_cotangent_are_cut_together() -> None:
    step = _Layer()
    sine = step.op("sine", "sine", f32(64, 4), [step.h], FORWARD)
    is_large = step.op(
        "is_large", "compare", array("pred", 64, 4), [sine, step.h], FORWARD
    )  # truth values join nothing
    chosen = step.op("chosen", "select", f32(64, 4), [is_large, sine, sine], FORWARD)
    assert step.ends(chosen) == {frozenset({"h", "sine", "chosen", "dh", "y"})}


def test_an_array_whose_rows_are_mixed_cannot_be_cut() -> None:
    """Only where the mixture meets the array again in the forward pass: every row takes all rows."""
    step = _Layer()
    sine = step.op("sine", "sine", f32(64, 4), [step.h], FORWARD)
    pairs = step.op("pairs", "dot", f32(4, 4), [step.h, sine], FORWARD)
    spread = step.op("spread", "broadcast", f32(64, 4), [pairs], FORWARD)
    mixed = step.op("mixed", "subtract", f32(64, 4), [step.h, spread], FORWARD)
    assert step.ends(mixed) == set()


@pytest.mark.parametrize("met", [BACKWARD, FORWARD])
def test_a_mixture_that_meets_no_row_again_in_the_forward_pass_does_no_harm(met: str) -> None:
    step = _Layer()
    sine = step.op("sine", "sine", f32(64, 4), [step.h], FORWARD)
    pairs = step.op("pairs", "dot", f32(4, 4), [step.h, sine], FORWARD)
    other = step.x if met is FORWARD else step.h
    spread = step.op("spread", "broadcast", f32(64, 4), [pairs], FORWARD)
    step.op("met", "subtract", f32(64, 4), [other, spread], met)
    assert frozenset({"h", "dh", "y"}) <= max(step.ends(step.h), key=len)
