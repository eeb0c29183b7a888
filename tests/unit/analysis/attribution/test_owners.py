"""The parameters that values and optimizer state belong to, in programs with and without loops.

A program with loops repeats every pass over its operations until nothing changes, so a pass must say so truly.
"""

from __future__ import annotations

import pytest
from hlo import Step, values
from hlo_nodes import BACKWARD, PLAIN, UNNAMED, Node, array, f32, tuple_of

from memprof.analysis.records.categories import Role

V = f32(4)
WITH_AND_WITHOUT_LOOPS = pytest.mark.parametrize("has_loop", [False, True])


class _Flat(Step):
    """Parameters and moments in flat lists, and two layers that the scopes of the forward pass name."""

    def __init__(self, *, has_loop: bool) -> None:
        super().__init__()
        self.moments = [self.argument(f"moments[{number}]", Role.OPTIMIZER_STATE, V) for number in range(2)]
        self.params = [self.argument(f"params[{number}]", Role.PARAMS, V) for number in range(2)]
        self.count = self.argument("count", Role.OPTIMIZER_STATE, f32())
        self.x = self.argument("x", Role.BATCH, V)
        h = self.x
        for layer, w in zip("ab", self.params, strict=True):
            h = self.op(f"h_{layer}", "multiply", V, [h, w], f"jit(step)/jvp({layer})/mul")
        self.h = _looped(self, h) if has_loop else h
        self.gradients = [self.op(f"d{number}", "multiply", V, [self.h, self.x], BACKWARD) for number in range(2)]

    def updated(self, number: int, moment: Node, *others: Node) -> Node:
        """A parameter that is updated with a moment, and what else the update reads."""
        sums = self.op(f"sum{number}", "add", V, [moment, self.gradients[number], *others], PLAIN)
        return self.op(f"new{number}", "subtract", V, [self.params[number], sums], PLAIN)

    def modules(self, *nodes: Node) -> list[str]:
        found = values(self)
        return [found[node.name].module for node in nodes]


def _looped(step: Step, x: Node) -> Node:
    """Pass a value through a loop."""
    body, condition = step.computation("body"), step.computation("condition")
    carried = body.parameter(tuple_of(V))
    body.tuple(body.op("turn", "negate", V, [body.element(carried, 0)], UNNAMED))
    condition.parameter(tuple_of(V))
    condition.op("go_on", "constant", array("pred"))
    loop = step.op("loop", "while", tuple_of(V), [step.tuple(x)], called=[body, condition])
    return step.element(loop, 0)


@WITH_AND_WITHOUT_LOOPS
@pytest.mark.parametrize("swapped", [False, True])
def test_moments_without_a_name_belong_to_the_parameter_that_they_update(has_loop: bool, swapped: bool) -> None:
    step = _Flat(has_loop=has_loop)
    first, second = reversed(step.moments) if swapped else step.moments
    step.result(step.updated(0, first), step.updated(1, second))
    assert step.modules(*step.params) == ["a", "b"]
    assert step.modules(first, second) == ["a", "b"]


@WITH_AND_WITHOUT_LOOPS
def test_state_that_updates_several_parameters_belongs_to_none(has_loop: bool) -> None:
    step = _Flat(has_loop=has_loop)
    scale = step.op("scale", "broadcast", V, [step.count], PLAIN)
    step.result(*(step.updated(number, step.moments[number], scale) for number in range(2)))
    assert step.modules(*step.moments, step.count) == ["a", "b", ""]


def test_a_moment_that_no_update_reads_belongs_to_no_parameter() -> None:
    step = _Flat(has_loop=False)
    step.result(step.updated(0, step.moments[0]), step.op("kept", "negate", V, [step.moments[1]], PLAIN))
    assert step.modules(*step.moments) == ["a", ""]


@WITH_AND_WITHOUT_LOOPS
def test_a_moment_is_followed_through_the_operations_of_the_update(has_loop: bool) -> None:
    step = _Flat(has_loop=has_loop)
    root = step.op("root", "sqrt", V, [step.op("square", "multiply", V, [step.moments[0]] * 2, PLAIN)], UNNAMED)
    step.result(step.updated(0, root), step.updated(1, step.moments[1]))
    assert step.modules(*step.moments) == ["a", "b"]


def test_what_the_passes_read_of_a_moment_is_no_update() -> None:
    """An operation of the forward pass that reads a moment with the other parameter says nothing about it."""
    step = _Flat(has_loop=False)
    step.op("odd", "multiply", V, [step.moments[0], step.params[1]], "jit(step)/jvp(b)/mul")
    step.result(step.updated(0, step.moments[0]), step.updated(1, step.moments[1]))
    assert step.modules(*step.moments) == ["a", "b"]


@WITH_AND_WITHOUT_LOOPS
@pytest.mark.parametrize("swapped", [False, True])
def test_moments_of_two_networks_belong_to_the_one_that_they_update(has_loop: bool, swapped: bool) -> None:
    step = Step()
    networks = [step.argument(f"{name}['params']['Dense_0']['kernel']", Role.PARAMS, V) for name in "gd"]
    moments = [
        step.argument(f"opt_{number}[0].mu['params']['Dense_0']['kernel']", Role.OPTIMIZER_STATE, V)
        for number in range(2)
    ]
    x = step.argument("x", Role.BATCH, V)
    h = step.op("h", "multiply", V, [x, *networks], "jit(step)/jvp()/mul")
    gradient = step.op("dx", "multiply", V, [_looped(step, h) if has_loop else h, x], BACKWARD)
    updates = []
    for number, moment in enumerate(reversed(moments) if swapped else moments):
        sums = step.op(f"sum{number}", "add", V, [moment, gradient], PLAIN)
        updates.append(step.op(f"new{number}", "subtract", V, [networks[number], sums], PLAIN))
    step.result(*updates)
    found = values(step)
    expected = ["d/Dense_0", "g/Dense_0"] if swapped else ["g/Dense_0", "d/Dense_0"]
    assert [found[moment.name].module for moment in moments] == expected


@pytest.mark.parametrize("names", ["qk", "kq"])
def test_of_several_layers_none_has_their_concatenated_weights(names: str) -> None:
    step = Step()
    weights = [step.argument(f"net['a']['{name}']['w']", Role.PARAMS, V) for name in names]
    step.argument("net['b']['w']", Role.PARAMS, V)
    x = step.argument("x", Role.BATCH, f32(8))
    both = step.op("both", "concatenate", f32(8), weights, UNNAMED)
    step.result(step.op("y", "multiply", f32(8), [x, both], "jit(step)/jvp()/mul"))
    assert values(step)["both"].module == "a"


@WITH_AND_WITHOUT_LOOPS
def test_copies_of_parameters_belong_to_them(has_loop: bool) -> None:
    """A copy of several layers belongs to their common module; a weight with its adapter to the weight."""
    step = Step()
    paths = {"net['a']['q']['w']": f32(8), "net['a']['k']['w']": f32(8), "lora['a']['q']['low']": f32(2)}
    q, k, low = (step.argument(path, Role.PARAMS, shape) for path, shape in paths.items())
    x = step.argument("x", Role.BATCH, V)
    x = _looped(step, x) if has_loop else x
    copy = step.op("copy", "convert", array("bf16", 8), [q], UNNAMED)
    again = step.op("again", "transpose", array("bf16", 8), [copy], UNNAMED)
    merged = step.op("merged", "add", f32(8), [low, q], UNNAMED)
    both = step.op("both", "concatenate", f32(16), [q, k], UNNAMED)
    made = [
        step.op(f"y{number}", "multiply", V, [x, each], "jit(step)/jvp()/mul")
        for number, each in enumerate((again, merged, both))
    ]
    step.result(*made)
    found = values(step)
    names = ("copy", "again", "merged", "both")
    assert [found[name].module for name in names] == ["net/a/q", "net/a/q", "net/a/q", "net/a"]
