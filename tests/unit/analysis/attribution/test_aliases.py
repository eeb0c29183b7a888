"""Which positions are the same value."""

from __future__ import annotations

import pytest
from hlo import Step, program_of
from hlo_nodes import Computation, Node, Shape, array, f32, tuple_of

from memprof.analysis.attribution.aliases import AliasSets
from memprof.analysis.hlo.buffer_table import decode_buffer_table
from memprof.analysis.records.categories import Role
from memprof.errors import InternalError

V = f32(4)


class Same:
    """Answers which leaves are the same value; a leaf is a node, or a node and the number of its leaf."""

    def __init__(self, step: Step) -> None:
        proto = step.proto()
        program = program_of(proto)
        self._groups = AliasSets(program, decode_buffer_table(proto, program))
        self._of = {i.name: self._groups.of_instruction(i) for i in program.instructions}
        self.order = [program.instructions[index].name for index in self._groups.order]
        self.in_memory = {name for name, groups in self._of.items() if self._groups.in_memory.issuperset(groups)}

    def __call__(self, *leaves: Node | tuple[Node, int]) -> bool:
        pairs = [leaf if isinstance(leaf, tuple) else (leaf, 0) for leaf in leaves]
        return len({self._of[node.name][number] for node, number in pairs}) == 1


def _step() -> tuple[Step, Node, Node]:
    step = Step()
    return step, step.argument("x", Role.BATCH, V), step.argument("y", Role.BATCH, V)


def _negated(computation: Computation, operand: Node, name: str, *, shares: Node | None = None) -> Node:
    return computation.op(name, "negate", operand.shape, [operand], shares=shares)


def test_what_computes_makes_a_value_of_its_own() -> None:
    step, x, y = _step()
    z = _negated(step, x, "z")
    same = Same(step)
    assert not same(x, y)
    assert not same(x, z)


@pytest.mark.parametrize("opcode", ["bitcast", "optimization-barrier", "add-dependency", "domain"])
def test_what_passes_its_operand_on_is_the_same_value(opcode: str) -> None:
    step, x, y = _step()
    passed = step.op("passed", opcode, V, [x, y] if opcode == "add-dependency" else [x])
    assert Same(step)(x, passed)


def test_elements_of_a_tuple_are_what_it_was_made_of() -> None:
    step, x, y = _step()
    inner = step.tuple(x, y)
    outer = step.tuple(inner, _negated(step, x, "z"))
    got_inner = step.element(outer, 0)
    got_y = step.element(got_inner, 1)
    same = Same(step)
    assert same(y, (inner, 1), (outer, 1), (got_inner, 1), got_y)
    assert same(x, (inner, 0), (outer, 0), (got_inner, 0))
    assert not same(x, y)
    assert not same(x, (outer, 2))


def test_a_fusion_is_seen_through_to_each_of_its_outputs() -> None:
    step, x, y = _step()
    fused = step.computation("fused", fused=True)
    p, q = fused.parameter(V), fused.parameter(V)
    sum_, difference = fused.op("sum", "add", V, [p, q]), fused.op("difference", "subtract", V, [p, q])
    fused.tuple(sum_, difference)
    fusion = step.op("fusion", "fusion", tuple_of(V, V), [x, y], called=[fused])
    got = step.element(fusion, 1)
    same = Same(step)
    assert same(x, p)
    assert same(y, q)
    assert same((fusion, 0), sum_)
    assert same((fusion, 1), difference, got)
    assert not same(sum_, difference)
    # The operands of the fusion lie in memory, and so do its results; nothing else of it does.
    assert same.order.index("sum") < same.order.index("fusion")


def test_what_exists_inside_a_fusion_only_is_not_in_memory() -> None:
    step, x, _ = _step()
    fused = step.computation("fused", fused=True)
    p = fused.parameter(V)
    _negated(fused, _negated(fused, p, "inside"), "root")
    step.op("fusion", "fusion", V, [x], called=[fused])
    assert Same(step).in_memory == {"x", "y", "fused.p0", "root", "fusion"}


def _loop(step: Step, name: str, initial: Node, *, outer: Computation | None = None) -> tuple[Computation, Node, Node]:
    """A loop's body, the parameter of its condition, and the loop itself; the caller writes the body before use."""
    body, condition = step.computation(f"{name}.body"), step.computation(f"{name}.condition")
    of_condition = condition.parameter(initial.shape)
    condition.op(f"{name}.less", "constant", array("pred"))
    loop = (outer or step).op(name, "while", initial.shape, [initial], called=[body, condition])
    return body, of_condition, loop


def test_the_values_that_a_loop_carries_are_one_each() -> None:
    step, x, y = _step()
    body, of_condition, loop = _loop(step, "loop", step.tuple(x, y))
    carried = body.parameter(loop.shape)
    first = _negated(body, body.element(carried, 0), "first")
    second = _negated(body, body.element(carried, 1), "second")
    root = body.tuple(first, second)
    got = step.element(loop, 1)
    same = Same(step)
    assert same(x, (carried, 0), (of_condition, 0), first, (root, 0), (loop, 0))
    assert same(y, (carried, 1), (of_condition, 1), second, (root, 1), (loop, 1), got)
    assert not same(x, y)
    # The condition runs first, then the body, and both before the loop has a result.
    order = [same.order.index(name) for name in ("loop.less", "first", "second", "loop")]
    assert order == sorted(order)


def test_a_loop_that_swaps_what_it_carries_makes_the_two_one() -> None:
    step, x, y = _step()
    body, _, loop = _loop(step, "loop", step.tuple(x, y))
    carried = body.parameter(loop.shape)
    body.tuple(body.element(carried, 1), body.element(carried, 0))
    assert Same(step)(x, y, (loop, 0), (loop, 1))


def test_loops_in_loops_carry_through() -> None:
    step, x, y = _step()
    body, _, loop = _loop(step, "outer", step.tuple(x, y))
    carried = body.parameter(loop.shape)
    inner_body, _, inner_loop = _loop(step, "inner", body.tuple(body.element(carried, 0)), outer=body)
    inner_carried = inner_body.parameter(inner_loop.shape)
    update = _negated(inner_body, inner_body.element(inner_carried, 0), "update")
    inner_body.tuple(update)
    body.tuple(body.element(inner_loop, 0), body.element(carried, 1))
    same = Same(step)
    assert same(x, update, (inner_carried, 0), (inner_loop, 0), (loop, 0))
    assert same(y, (carried, 1), (loop, 1))
    assert not same(x, y)


def test_a_conditional_is_what_either_branch_makes() -> None:
    step, x, y = _step()
    branches = [step.computation("yes"), step.computation("no")]
    parameters = [branch.parameter(V) for branch in branches]
    results = [
        _negated(branch, parameter, f"{branch.name}.result")
        for branch, parameter in zip(branches, parameters, strict=True)
    ]
    which = step.op("which", "constant", array("pred"))
    conditional = step.op("conditional", "conditional", V, [which, x, y], called=branches)
    same = Same(step)
    assert same(conditional, *results)
    assert same(x, parameters[0])
    assert same(y, parameters[1])
    assert not same(x, y)
    assert not same(x, conditional)


def test_a_call_is_what_its_computation_makes() -> None:
    step, x, y = _step()
    called = step.computation("called")
    p, q = called.parameter(V), called.parameter(V)
    result = called.op("result", "add", V, [p, q])
    call = step.op("call", "call", V, [x, y], called=[called])
    same = Same(step)
    assert same(call, result)
    assert same(x, p)
    assert same(y, q)


def test_what_runs_in_the_background_is_what_its_computation_makes() -> None:
    step, x, y = _step()
    wrapped = step.computation("wrapped")
    p, q = wrapped.parameter(V), wrapped.parameter(V)
    result = wrapped.op("result", "add", V, [p, q])
    shape = tuple_of(tuple_of(V, V), V, array("u32"))
    start = step.op("start", "async-start", shape, [x, y], called=[wrapped])
    done = step.op("done", "async-done", V, [start])
    same = Same(step)
    assert same(x, p, (start, 0))
    assert same(y, q, (start, 1))
    assert same(result, (start, 2), done)
    assert not same(x, done)


def test_what_is_launched_without_operands_takes_them_with_its_first_update() -> None:
    step, x, y = _step()
    wrapped = step.computation("wrapped")
    p, q = wrapped.parameter(V), wrapped.parameter(V)
    result = wrapped.op("result", "add", V, [p, q])
    launched = tuple_of(tuple_of(), tuple_of(), tuple_of(array("s32", 1)))
    launch = step.op("launch", "async-start", launched, [], called=[wrapped])
    z = step.op("z", "negate", V, [y])  # the operands may be made after the launch
    start = step.op("start", "async-update", tuple_of(tuple_of(V, V), V), [launch, x, z])
    done = step.op("done", "async-done", V, [start])
    same = Same(step)
    assert same(x, p, (start, 0))
    assert same(z, q, (start, 1))
    assert same(result, (start, 2), done)
    assert not same(x, done)


def test_a_copy_in_the_background_is_a_new_value() -> None:
    step, x, _ = _step()
    start = step.op("start", "copy-start", tuple_of(V, V, array("u32")), [x], holds=(0, 2))
    done = step.op("done", "copy-done", V, [start])
    same = Same(step)
    assert same((start, 0), done)
    assert same((start, 1), x)
    assert not same(x, done)


@pytest.mark.parametrize("opcode", ["all-gather", "collective-permute"])
def test_communication_in_the_background_ends_with_its_second_element(opcode: str) -> None:
    step, x, _ = _step()
    start = step.op("start", f"{opcode}-start", tuple_of(V, f32(8)), [x], holds=(1,))
    done = step.op("done", f"{opcode}-done", f32(8), [start])
    same = Same(step)
    assert same((start, 1), done)
    assert not same(x, done)


def test_an_all_reduce_in_the_background_has_its_result_alone() -> None:
    step, x, _ = _step()
    start = step.op("start", "all-reduce-start", V, [x])
    done = step.op("done", "all-reduce-done", V, [start])
    same = Same(step)
    assert same(start, done)
    assert not same(x, done)


def _update(opcode: str, target: Shape, *, in_place: bool) -> bool:
    """Whether an update of a fresh array is the same value as the array, where the two (do not) share memory."""
    step, x, _ = _step()
    stack = step.op("stack", "iota", target)
    index = step.op("index", "constant", array("s32"))
    operands = [stack, x, index] if opcode == "dynamic-update-slice" else [stack, index, x]
    updated = step.op("updated", opcode, target, operands, shares=stack if in_place else None)
    return Same(step)(stack, updated)


@pytest.mark.parametrize("opcode", ["dynamic-update-slice", "scatter"])
def test_an_update_is_the_same_value_only_where_it_happens_in_place(opcode: str) -> None:
    assert _update(opcode, f32(8), in_place=True)
    assert not _update(opcode, f32(8), in_place=False)


def test_a_fused_update_in_place_is_the_same_value() -> None:
    step, x, _ = _step()
    stack = step.op("stack", "iota", f32(8))
    fused = step.computation("fused", fused=True)
    p, q = fused.parameter(f32(8)), fused.parameter(V)
    index = fused.op("index", "constant", array("s32"))
    fused.op("updated", "dynamic-update-slice", f32(8), [p, q, index])
    fusion = step.op("fusion", "fusion", f32(8), [stack, x], called=[fused], shares=stack)
    assert Same(step)(stack, fusion)


def test_updates_in_place_follow_one_another() -> None:
    step, x, y = _step()
    stack = step.op("stack", "iota", f32(8))
    index = step.op("index", "constant", array("s32"))
    first = step.op("first", "dynamic-update-slice", f32(8), [stack, x, index], shares=stack)
    second = step.op("second", "dynamic-update-slice", f32(8), [first, y, index], shares=first)
    apart = step.op("apart", "dynamic-update-slice", f32(8), [second, y, index])
    same = Same(step)
    assert same(stack, first, second)
    assert not same(stack, apart)


def test_the_scalar_computation_of_a_reduction_is_not_seen_through() -> None:
    step, x, y = _step()
    adder = step.computation("adder")
    adder.op("sum", "add", f32(), [adder.parameter(f32()), adder.parameter(f32())])
    step.op("reduce", "reduce", f32(), [x, y], called=[adder])
    assert "sum" not in Same(step).order


def test_a_shape_that_does_not_fit_is_an_error() -> None:
    step, x, y = _step()
    step.op("got", "get-tuple-element", tuple_of(V, V), [step.tuple(x, y)])
    with pytest.raises(InternalError, match=r"the operand of got \(get-tuple-element\) has another shape"):
        Same(step)
