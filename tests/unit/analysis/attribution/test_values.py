"""What is known of each value in memory: names, phases, modules."""

from __future__ import annotations

import pytest
from hlo import Step, values
from hlo_nodes import BACKWARD, FORWARD, PLAIN, RECOMPUTED, UNNAMED, Node, Shape, array, f32, tuple_of

from memprof.analysis.attribution.dataflow import ROLE_ORIGIN, Origin, Use
from memprof.analysis.attribution.values import Value
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Phase, Role

V = f32(4)


class _Net(Step):
    """Two layers with a parameter each, momentum for the first, an input and a key."""

    def __init__(self) -> None:
        super().__init__()
        self.a = self.argument("params['a']['kernel']", Role.PARAMS, V)
        self.b = self.argument("params['b']['kernel']", Role.PARAMS, V)
        self.m = self.argument("opt.m['a']['kernel']", Role.OPTIMIZER_STATE, V)
        self.x = self.argument("x", Role.BATCH, V)
        self.key = self.argument("key", Role.OTHER_STATE, array("u32", 2))


def test_a_value_carries_the_facts_of_its_instruction() -> None:
    step = _Net()
    shape = tuple_of(f32(2, 2), array("u8", 9))
    call = step.op("call", "custom-call", shape, [step.x], "jit(step)/jvp(Net)/b/dot_general", target="gemm")
    step.result(step.op("y", "negate", V, [step.element(call, 0)], BACKWARD))
    assert values(step)["call{0}"] == Value(
        name="call",
        opcode="custom-call",
        custom_call_target="gemm",
        element=(0,),
        shape=(2, 2),
        dtype="f32",
        op_name="jit(step)/jvp(Net)/b/dot_general",
        operation=5,  # after the five arguments
        module="b",
        phase=Phase.FORWARD,
        computed_in=Phase.FORWARD,
        origin=ROLE_ORIGIN[Role.BATCH] | Origin.FORWARD,
        use=Use.BACKWARD,
        group=5,
    )


def test_a_constant_inside_a_fusion_brings_nothing_of_its_own() -> None:
    step = _Net()
    fused = step.computation("fused", fused=True)
    halved = fused.op("half", "broadcast", V, [fused.op("c", "constant", f32(), [], FORWARD)], FORWARD)
    fused.op("root", "multiply", V, [fused.parameter(V), halved])
    new_m = step.op("new_m", "add", V, [step.m, step.a], PLAIN)
    step.result(step.op("fusion", "fusion", V, [new_m], called=[fused]), step.op("c2", "constant", f32(), [], FORWARD))
    found = values(step)
    assert found["fusion"].origin == found["new_m"].origin  # and not that of the forward pass, whose name it has
    assert found["c2"].origin == Origin.FORWARD  # it lies in memory


def test_origins_name_the_roles_and_the_phases_that_a_value_is_made_from() -> None:
    step = _Net()
    h = step.op("h", "multiply", V, [step.a, step.x], FORWARD)
    again = step.op("again", "multiply", V, [h, step.key], RECOMPUTED)
    da = step.op("da", "multiply", V, [again, step.x], BACKWARD)
    decayed = step.op("decayed", "add", V, [da, step.b], PLAIN)
    step.result(step.op("new_m", "add", V, [step.m, decayed], PLAIN))
    found = {name: value.origin for name, value in values(step).items()}
    forward = ROLE_ORIGIN[Role.PARAMS] | ROLE_ORIGIN[Role.BATCH] | Origin.FORWARD
    backward = forward | ROLE_ORIGIN[Role.OTHER_STATE] | Origin.RECOMPUTE | Origin.BACKWARD
    assert found == {
        "params['a']['kernel']": ROLE_ORIGIN[Role.PARAMS],
        "params['b']['kernel']": ROLE_ORIGIN[Role.PARAMS],
        "opt.m['a']['kernel']": ROLE_ORIGIN[Role.OPTIMIZER_STATE],
        "x": ROLE_ORIGIN[Role.BATCH],
        "key": ROLE_ORIGIN[Role.OTHER_STATE],
        "h": forward,
        "again": forward | ROLE_ORIGIN[Role.OTHER_STATE] | Origin.RECOMPUTE,
        "da": backward,
        # without passing through differentiation again: the update
        "decayed": backward | Origin.DIRECT_PARAMS,
        "new_m": backward | Origin.DIRECT_PARAMS | ROLE_ORIGIN[Role.OPTIMIZER_STATE] | Origin.DIRECT_OPTIMIZER_STATE,
    }


def test_an_argument_keeps_its_role_whatever_is_written_into_it() -> None:
    step = Step()
    w = step.argument("params['a']['kernel']", Role.PARAMS, V, donated=True)
    x = step.argument("x", Role.BATCH, V)
    index = step.op("index", "constant", array("s32"))
    step.op("written", "dynamic-update-slice", V, [w, x, index], PLAIN, shares=w)
    found = values(step)
    assert (found["params['a']['kernel']"].origin, found["written"].origin) == (
        ROLE_ORIGIN[Role.PARAMS],
        ROLE_ORIGIN[Role.PARAMS],
    )
    assert not found["written"].is_output  # it lies in the memory of an argument


def test_what_a_value_is_made_from_is_followed_around_a_loop() -> None:
    step = _Net()
    body, condition = step.computation("body"), step.computation("condition")
    zeros = [step.op(f"zeros{number}", "iota", V) for number in range(3)]
    loop = step.op("loop", "while", tuple_of(V, V, V, V), [step.tuple(*zeros, step.x)], called=[body, condition])
    condition.parameter(loop.shape)
    condition.op("less", "constant", array("pred"))
    carried = body.parameter(loop.shape)
    # Each turn moves the input one place on: it is in the last after three.
    moved = [body.op(f"move{n}", "negate", V, [body.element(carried, n)], PLAIN, shares=zeros[n + 1]) for n in range(2)]
    x = body.element(carried, 3)
    body.tuple(body.op("enter", "negate", V, [x], PLAIN, shares=zeros[0]), *moved, x)
    found = values(step)
    assert [found[f"zeros{number}"].origin for number in range(3)] == [ROLE_ORIGIN[Role.BATCH]] * 3


def test_uses_name_what_becomes_of_a_value() -> None:
    step = _Net()
    h = step.op("h", "multiply", V, [step.a, step.x], FORWARD)
    y = step.op("y", "multiply", V, [h, step.b], FORWARD)
    again = step.op("again", "multiply", V, [y, h], RECOMPUTED)
    da = step.op("da", "multiply", V, [again, step.x], BACKWARD)
    new_m = step.op("new_m", "add", V, [step.m, da], PLAIN)
    step.op("unused", "negate", V, [h], FORWARD)
    step.result(new_m)
    found = {name: value.use for name, value in values(step).items() if not value.argument}
    assert found == {
        "h": Use.FORWARD | Use.RECOMPUTE,
        "y": Use.RECOMPUTE,
        "again": Use.BACKWARD,
        "da": Use.UPDATE | Use.GRADIENT,
        "new_m": Use.RESULT,
        "unused": 0,
    }


def test_what_is_copied_beside_a_gradient_is_none() -> None:
    step = _Net()
    h = step.op("h", "multiply", V, [step.a, step.x], FORWARD)
    da = step.op("da", "multiply", V, [h, step.x], BACKWARD)
    both = step.op("both", "concatenate", f32(8), [da, h], UNNAMED)
    step.result(step.op("new_m", "add", f32(8), [step.m, both], PLAIN))
    found = values(step)
    assert (found["da"].use, found["h"].use) == (Use.GRADIENT | Use.UPDATE, Use.BACKWARD | Use.UPDATE)


def test_what_the_backward_pass_works_on_in_place_is_of_the_backward_pass() -> None:
    step = _Net()
    # The cotangent that a loop begins with may be named as part of the forward pass, and still be made for the loop.
    seed = step.op("seed", "multiply", V, [step.a, step.x], FORWARD)
    index = step.op("index", "constant", array("s32"))
    step.op("dx", "dynamic-update-slice", V, [seed, step.x, index], BACKWARD, shares=seed)
    found = values(step)
    assert (found["seed"].phase, found["dx"].phase) == (Phase.BACKWARD, Phase.BACKWARD)


@pytest.mark.parametrize(
    ("op_name", "phase"),
    [(FORWARD, Phase.FORWARD), (RECOMPUTED, Phase.RECOMPUTE), (BACKWARD, Phase.BACKWARD)],
)
def test_a_name_tells_the_phase_and_an_unnamed_copy_inherits_it(op_name: str, phase: Phase) -> None:
    step = _Net()
    made = step.op("made", "multiply", V, [step.a, step.x], op_name)
    step.op("copy", "copy", V, [made], UNNAMED)
    step.op("elsewhere", "negate", V, [step.x], BACKWARD)
    found = values(step)
    assert (found["made"].phase, found["copy"].phase) == (phase, phase)


@pytest.mark.parametrize(
    ("last", "phase"),
    [(FORWARD, Phase.FORWARD), (RECOMPUTED, Phase.RECOMPUTE), (BACKWARD, Phase.BACKWARD)],
)
def test_what_nothing_upstream_tells_the_phase_of_belongs_to_its_users(last: str, phase: Phase) -> None:
    step = _Net()
    earliest = step.op("earliest", "negate", V, [step.x], UNNAMED)
    early = step.op("early", "negate", V, [earliest], UNNAMED)
    step.op("late", "multiply", V, [step.op("copy", "copy", V, [early], UNNAMED), step.a], last)
    step.op("elsewhere", "negate", V, [step.x], BACKWARD)
    found = values(step)
    assert [found[name].phase for name in ("earliest", "early", "copy")] == [phase] * 3


def test_after_differentiation_the_update_begins_where_state_comes_in() -> None:
    step = _Net()
    da = step.op("da", "multiply", V, [step.a, step.x], BACKWARD)
    clipped = step.op("clipped", "negate", V, [da], PLAIN)
    moment = step.op("moment", "add", V, [step.m, clipped], PLAIN)
    step.op("ratio", "negate", V, [moment], PLAIN)
    step.op("decay", "negate", V, [step.m], PLAIN)  # needs no gradient, but is the update all the same
    found = values(step)
    assert {name: found[name].phase for name in ("da", "clipped", "moment", "ratio", "decay")} == {
        "da": Phase.BACKWARD,
        "clipped": Phase.BACKWARD,
        "moment": Phase.UPDATE,
        "ratio": Phase.UPDATE,
        "decay": Phase.UPDATE,
    }
    assert [found[name].is_past_differentiation for name in ("da", "clipped")] == [False, True]


def test_an_unnamed_copy_of_the_input_is_no_work_on_gradients() -> None:
    step = _Net()
    copy = step.op("copy", "copy", V, [step.x], UNNAMED)
    step.op("da", "multiply", V, [copy, step.a], BACKWARD)
    value = values(step)["copy"]
    assert (value.phase, value.is_past_differentiation) == (Phase.BACKWARD, False)


# Op names of what fusions and the compiler hide


def _fusion(step: Step, op_name: str, *names: str) -> Node:
    """A fusion of as many results as there are names, one for the operation that makes each."""
    fused = step.computation("fused", fused=True)
    p = fused.parameter(V)
    parts = [fused.op(f"part{number}", "negate", V, [p], name) for number, name in enumerate(names)]
    if len(parts) == 1:
        return step.op("fusion", "fusion", V, [step.nodes[0]], op_name, called=[fused])
    fused.tuple(*parts)
    return step.op("fusion", "fusion", tuple_of(*[V] * len(parts)), [step.nodes[0]], op_name, called=[fused])


def test_a_fusion_is_named_after_the_operation_at_its_root() -> None:
    step = _Net()
    _fusion(step, "jit(step)/jvp(Net)/a/mul", "jit(step)/transpose(jvp(Net))/b/neg")
    value = values(step)["fusion"]
    assert (value.op_name, value.module, value.phase) == (
        "jit(step)/transpose(jvp(Net))/b/neg",
        "b",
        Phase.BACKWARD,
    )


def test_each_result_of_a_fusion_is_named_after_its_own_operation() -> None:
    step = _Net()
    _fusion(step, "jit(step)/jvp(Net)/a/mul", "jit(step)/jvp(Net)/a/neg", "jit(step)/transpose(jvp(Net))/b/neg")
    found = values(step)
    assert [found[f"fusion{{{number}}}"].module for number in range(2)] == ["a", "b"]
    assert [found[f"fusion{{{number}}}"].phase for number in range(2)] == [Phase.FORWARD, Phase.BACKWARD]


def test_a_copy_that_the_compiler_inserts_is_named_after_what_it_copies() -> None:
    step = _Net()
    h = step.op("h", "multiply", V, [step.a, step.x], "jit(step)/jvp(Net)/a/mul")
    step.op("copy", "copy", V, [step.op("view", "bitcast", V, [h])], UNNAMED)
    value = values(step)["copy"]
    assert (value.op_name, value.module) == ("jit(step)/jvp(Net)/a/mul", "a")


def test_the_zeros_of_an_accumulator_are_named_after_what_adds_to_them() -> None:
    step = _Net()
    zeros = step.op("zeros", "broadcast", V, [step.op("zero", "constant", f32())], UNNAMED)
    body, condition = step.computation("body"), step.computation("condition")
    step.op("loop", "while", tuple_of(V), [step.tuple(zeros)], called=[body, condition])
    condition.parameter(tuple_of(V))
    condition.op("less", "constant", array("pred"))
    old = body.element(body.parameter(tuple_of(V)), 0)
    body.tuple(body.op("sum", "add", V, [old, old], "jit(step)/while/body/add", shares=zeros))
    assert values(step)["zeros"].op_name == "jit(step)/while/body/add"


@pytest.mark.parametrize("opcode", ["copy", "convert", "transpose"])
def test_what_the_compiler_only_converts_is_told_by_who_made_it(opcode: str) -> None:
    step = _Net()
    name = "jit(step)/jvp(Net)/a/mul"
    made, widened = step.computation("made", fused=True), step.computation("widened", fused=True)
    product = made.op("product", "multiply", V, [made.parameter(V), made.parameter(V)], name)
    made.op("narrow", opcode, V, [product], UNNAMED)
    half = step.op("half", "fusion", V, [step.a, step.x], UNNAMED, called=[made])
    widened.op("wide", opcode, V, [widened.parameter(V)], UNNAMED)
    step.op("full", "fusion", V, [half], UNNAMED, called=[widened])
    found = values(step)
    assert [(found[name].op_name, found[name].module) for name in ("half", "full")] == [(name, "a")] * 2


@pytest.mark.parametrize(("between", "teller"), [("convert", "made"), ("negate", "push")])
def test_a_stack_is_told_through_conversions_and_not_through_work(between: str, teller: str) -> None:
    step = _Net()
    names = {"made": "jit(step)/jvp(Net)/a/mul", "push": "jit(step)/jvp(Net)/while/body/dynamic_update_slice"}
    h = step.op("h", "multiply", V, [step.a, step.x], names["made"])
    unnamed = step.op("unnamed", between, V, [h], UNNAMED)
    stack = step.op("stack", "broadcast", f32(2, 4), [step.op("zero", "constant", f32())], UNNAMED)
    index = step.op("index", "constant", array("s32"))
    step.op("pushed", "dynamic-update-slice", f32(2, 4), [stack, unnamed, index], names["push"], shares=stack)
    assert values(step)["pushed"].op_name == names[teller]


def test_an_operation_that_the_compiler_adds_has_the_name_of_its_reader_rather_than_of_what_it_reads() -> None:
    step = _Net()
    h = step.op("h", "multiply", V, [step.a, step.x], "jit(step)/jvp(Net)/a/mul")
    added = step.op("added", "negate", V, [h], UNNAMED)
    step.op("y", "multiply", V, [added, step.b], "jit(step)/jvp(Net)/b/mul")
    assert values(step)["added"].op_name == "jit(step)/jvp(Net)/b/mul"


def test_a_copy_of_one_result_of_a_fusion_is_named_after_the_operation_that_makes_that_result() -> None:
    step = _Net()
    names = "jit(step)/jvp(Net)/a/mul", "jit(step)/jvp(Net)/b/neg"
    fusion = _fusion(step, "", *names)
    for number in range(2):
        step.op(f"copy{number}", "copy", V, [step.element(fusion, number)], UNNAMED)
    found = values(step)
    assert [found[f"copy{number}"].op_name for number in range(2)] == list(names)


def test_each_value_of_a_fused_tuple_of_tuples_is_named_after_its_own_operation() -> None:
    step = _Net()
    fused = step.computation("fused", fused=True)
    p = fused.parameter(V)
    names = [f"jit(step)/jvp(Net)/{part}/neg" for part in "abc"]
    parts = [fused.op(f"part{number}", "negate", V, [p], name) for number, name in enumerate(names)]
    fused.tuple(fused.tuple(*parts[:2]), parts[2])
    step.op("fusion", "fusion", tuple_of(tuple_of(V, V), V), [step.x], called=[fused])
    found = values(step)
    assert [found[f"fusion{{{index}}}"].op_name for index in ("0,0", "0,1", "1")] == names


@pytest.mark.parametrize(("extra", "shape", "padding"), [(64, V, 64), (0, V, 0), (-8, V, 0), (64, f32(0), 0)])
def test_padding_is_the_memory_beyond_the_elements(extra: int, shape: Shape, padding: int) -> None:
    step = _Net()
    step.op("h", "iota", shape, [], FORWARD)
    proto = step.proto()
    (temp,) = (each for each in proto.buffer_assignment.buffer_allocations if not each.is_entry_computation_parameter)
    for each in (temp, temp.assigned[0], proto.buffer_assignment.logical_buffers[-1]):
        each.size += extra
    assert values(step, proto)["h"].padding_bytes == padding


# Modules


def _modules(step: Step, *names: str) -> list[str]:
    found = values(step)
    return [found[name].module for name in names]


def test_an_argument_belongs_to_the_module_of_its_path() -> None:
    assert _modules(_Net(), "params['a']['kernel']", "opt.m['a']['kernel']", "x", "key") == ["a", "a", "", ""]


def test_where_names_tell_modules_top_level_operations_belong_to_none() -> None:
    step = _Net()
    h = step.op("h", "multiply", V, [step.a, step.x], "jit(step)/jvp(Net)/a/mul")
    loss = step.op("loss", "multiply", V, [h, step.x], "jit(step)/jvp()/mul")
    step.op("da", "multiply", V, [loss, h], "jit(step)/transpose(jvp(Net))/a/mul")
    assert _modules(step, "h", "loss", "da") == ["a", "", "a"]


def test_the_scope_of_the_whole_network_is_no_module() -> None:
    step = _Net()
    h = step.op("h", "multiply", V, [step.a, step.x], "jit(predict)/Net/a/mul")
    relu = step.op("relu", "maximum", V, [h], "jit(predict)/Net/jit(relu)/max")
    step.op("drop", "multiply", V, [relu, relu], "jit(predict)/Net/dropout_0/mul")
    step.op("da", "multiply", V, [h, h], "jit(step)/transpose(jvp(Net))/a/mul")
    assert _modules(step, "h", "relu", "drop") == ["a", "", "dropout_0"]


def test_values_of_two_scopes_that_share_memory_keep_their_own_scope() -> None:
    step = _Net()
    step.op("h", "multiply", V, [step.a, step.x], "jit(step)/jvp(Net)/a/mul")
    index = step.op("index", "constant", array("s32"))
    drawn = step.op("drawn", "iota", f32(8), [], "jit(step)/jvp(Net)/dropout_0/iota")
    name = "jit(step)/jvp(Net)/dropout_1/dynamic_update_slice"
    step.op("written", "dynamic-update-slice", f32(8), [drawn, step.x, index], name, shares=drawn)
    assert _modules(step, "drawn", "written") == ["dropout_0", "dropout_1"]


def test_an_operation_without_a_name_has_the_scope_of_the_one_that_it_is_made_for() -> None:
    step = _Net()
    step.op("h", "multiply", V, [step.a, step.x], "jit(step)/jvp(Net)/a/mul")
    chosen = step.op("chosen", "select", V, [step.x, step.x], UNNAMED)
    step.op("pooled", "dot", V, [chosen, step.x], "jit(step)/jvp(Net)/pool_0/dot_general")
    assert _modules(step, "chosen", "pooled") == ["pool_0", "pool_0"]


def test_a_named_view_is_not_the_operation_that_makes_the_data() -> None:
    step = _Net()
    h = step.op("h", "multiply", V, [step.a, step.x], "jit(step)/jvp(Net)/a/mul")
    view = step.op("view", "bitcast", V, [h], "jit(step)/jvp(Net)/b/reshape")
    step.op("copy", "copy", V, [view], UNNAMED)
    assert values(step)["copy"].op_name == "jit(step)/jvp(Net)/a/mul"


def test_where_names_tell_modules_what_only_moves_data_belongs_to_the_module_of_the_data() -> None:
    step = _Net()
    h = step.op("h", "multiply", V, [step.a, step.x], "jit(step)/jvp(Net)/a/mul")
    stack = step.op("stack", "broadcast", f32(2, 4), [step.op("zero", "constant", f32())], UNNAMED)
    index = step.op("index", "constant", array("s32"))
    name = "jit(step)/jvp()/while/body/dynamic_update_slice"
    pushed = step.op("pushed", "dynamic-update-slice", f32(2, 4), [stack, h, index], name)
    name = "jit(step)/transpose(jvp())/while/body/dynamic_slice"
    step.op("popped", "dynamic-slice", V, [pushed, index], name)
    step.op("kernel", "dynamic-slice", V, [step.b, index], name)
    assert _modules(step, "pushed", "popped", "kernel") == ["a", "a", "b"]


def test_a_stack_is_told_by_what_is_pushed_rather_than_by_the_push() -> None:
    step = _Net()
    made = "jit(step)/jvp(Net)/while/body/a/mul"
    h = step.op("h", "multiply", V, [step.a, step.x], made)
    stack = step.op("stack", "broadcast", f32(2, 4), [step.op("zero", "constant", f32())], UNNAMED)
    index = step.op("index", "constant", array("s32"))
    name = "jit(step)/jvp(Net)/b/while/body/dynamic_update_slice"
    step.op("pushed", "dynamic-update-slice", f32(2, 4), [stack, h, index], name, shares=stack)
    found = values(step)
    assert [(found[name].op_name, found[name].module) for name in ("pushed", "stack")] == [(made, "a")] * 2


def test_where_names_tell_no_modules_the_parameters_that_come_in_do() -> None:
    step = _Net()
    h = step.op("h", "multiply", V, [step.x, step.a], "jit(step)/jvp()/mul")
    relu = step.op("relu", "maximum", V, [h], "jit(step)/jvp()/max")
    b16 = step.op("b16", "convert", array("bf16", 4), [step.b], "jit(step)/jvp()/convert_element_type")
    step.op("y", "multiply", V, [relu, step.b], "jit(step)/jvp()/mul")
    step.op("z", "multiply", V, [relu, b16], "jit(step)/jvp()/mul")
    # The activation lies between both layers: they have nothing but the root in common.
    assert _modules(step, "h", "relu", "b16", "y", "z") == ["a", "", "b", "b", "b"]


def test_where_names_tell_no_modules_a_gradient_belongs_to_the_parameter_that_it_updates() -> None:
    step = _Net()
    dy = step.op("dy", "multiply", V, [step.x, step.b], "jit(step)/transpose(jvp())/mul")
    da = step.op("da", "multiply", V, [dy, step.x], "jit(step)/transpose(jvp())/mul")
    step.result(step.op("new_m", "add", V, [step.m, da], PLAIN))
    assert _modules(step, "dy", "da", "new_m") == ["b", "a", "a"]


def test_the_update_of_a_parameter_belongs_to_its_module_wherever_the_gradient_is_made() -> None:
    step = _Net()
    da = step.op("da", "multiply", V, [step.x, step.b], "jit(step)/transpose(jvp(Net))/b/mul")
    clipped = step.op("clipped", "negate", V, [da], PLAIN)
    moment = step.op("moment", "add", V, [clipped, step.m], PLAIN)
    ahead = step.op("ahead", "add", V, [clipped, moment], PLAIN)
    step.result(step.op("new_a", "subtract", V, [ahead, step.a], PLAIN))
    assert _modules(step, "da", "clipped", "moment", "ahead", "new_a") == ["b", "b", "a", "a", "a"]


# Whole allocations


def test_the_memory_of_a_result_is_the_result_whatever_else_takes_turns_in_it() -> None:
    step = _Net()
    # XLA numbers its values in an order of its own, so that the result need not be the last of them, nor the largest.
    earlier = step.op("earlier", "multiply", f32(8), [step.a, step.x], FORWARD)
    result = step.op("result", "negate", V, [step.x], BACKWARD, shares=earlier)
    step.op("later", "negate", f32(8), [step.x], FORWARD, shares=result)
    step.result(result)
    (buffer,) = (buffer for buffer in analyze(step.capture()).buffers if buffer.category == "outputs")
    assert (buffer.name, buffer.shape, buffer.size_bytes) == ("result", (4,), 32)


def test_the_memory_of_an_argument_is_the_argument_whatever_is_written_into_it() -> None:
    step = Step()
    w = step.argument("params['a']['kernel']", Role.PARAMS, V, donated=True)
    step.result(step.op("new_w", "negate", V, [w], PLAIN, shares=w))
    (buffer,) = analyze(step.capture()).buffers
    assert (buffer.name, buffer.op, buffer.category, buffer.phase) == (
        "params['a']['kernel']",
        "params['a']['kernel']",
        "params",
        Phase.ARGUMENT,
    )


def test_the_memory_of_an_argument_is_the_argument_although_a_loop_works_in_it() -> None:
    step = Step()
    w = step.argument("params['a']['kernel']", Role.PARAMS, f32(2, 2), donated=True)
    body, condition = step.computation("body"), step.computation("condition")
    flat = step.op("flat", "negate", V, [w], PLAIN, shares=w)
    loop = step.op("loop", "while", V, [flat], called=[body, condition])
    condition.parameter(V)
    condition.op("less", "constant", array("pred"))
    # A loop's parameter is no argument of the step, though XLA calls both a parameter.
    carried = body.op("carried", "parameter", V, shares=w, table=True)
    body.op("turn", "negate", V, [carried], PLAIN, shares=w)
    step.result(loop)
    (buffer,) = (each for each in analyze(step.capture()).buffers if each.category == "params")
    assert (buffer.name, buffer.shape, buffer.module) == ("params['a']['kernel']", (2, 2), "a")
