"""Each attribution rule, shown by a program that needs it.

A new rule needs a program here: write one, and mark it with `@shows`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hlo import Step, categories, values
from hlo_nodes import BACKWARD, FORWARD, PLAIN, RECOMPUTED, UNNAMED, Node, Shape, array, f32, tuple_of

from memprof.analysis.attribution.rules import RULES, Claim, Rule, attribute
from memprof.analysis.records.categories import Category, Role

V = f32(4)


@dataclass(frozen=True, slots=True)
class Example:
    """A program, the buffer in it that a rule claims, and what that rule says of it."""

    make: Callable[[], Step]
    buffer: str
    claim: Claim


_EXAMPLES: dict[str, Example] = {}


def shows(rule: str, buffer: str, category: Category, evidence: str) -> Callable[[Callable[[], Step]], None]:
    def register(make: Callable[[], Step]) -> None:
        _EXAMPLES[rule] = Example(make, buffer, Claim(category=category, rule=rule, evidence=evidence))

    return register


def _start() -> tuple[Step, Node, Node, Node]:
    """A step with a parameter `w`, its momentum `m` and the input `x`."""
    step = Step()
    w = step.argument("params['w']", Role.PARAMS, V)
    m = step.argument("opt.m['w']", Role.OPTIMIZER_STATE, V)
    return step, w, m, step.argument("x", Role.BATCH, V)


@shows("arguments", "params['w']", Category.PARAMS, "argument params['w']")
def _() -> Step:
    step, w, _, x = _start()
    step.result(step.op("y", "multiply", V, [w, x], FORWARD))
    return step


@shows("outputs", "new_w", Category.OUTPUTS, "result of the step")
def _() -> Step:
    step, w, _, x = _start()
    dw = step.op("dw", "multiply", V, [w, x], BACKWARD)
    step.result(step.op("new_w", "subtract", V, [w, dw], PLAIN))
    return step


@shows("tuple_tables", "call", Category.WORKSPACE, "table of pointers to the elements of a tuple")
def _() -> Step:
    step, w, _, x = _start()
    call = step.op("call", "custom-call", tuple_of(V, V), [w, x], FORWARD, table=True)
    step.result(step.op("y", "negate", V, [step.element(call, 0)], FORWARD))
    return step


@shows("workspace", "gemm{1}", Category.WORKSPACE, "scratch of __cublas$gemm")
def _() -> Step:
    step, w, _, x = _start()
    shape = tuple_of(V, array("u8", 1024))
    gemm = step.op("gemm", "custom-call", shape, [w, x], FORWARD, target="__cublas$gemm")
    step.result(step.op("y", "negate", V, [step.element(gemm, 0)], FORWARD))
    return step


@shows("constants", "mask", Category.CONSTANTS, "does not depend on any argument")
def _() -> Step:
    step, _, _, x = _start()
    mask = step.op("mask", "iota", V, [], FORWARD)
    step.result(step.op("y", "multiply", V, [mask, x], FORWARD))
    return step


@shows("param_copies", "w16", Category.PARAM_COPIES, "depends only on parameters")
def _() -> Step:
    step, w, _, x = _start()
    w16 = step.op("w16", "convert", array("bf16", 4), [w], FORWARD)
    step.result(step.op("dx", "multiply", V, [w16, x], BACKWARD))
    return step


@shows(
    "gathered_params",
    "whole",
    Category.GATHERED_PARAMS,
    "depends only on parameters, partly gathered from other devices",
)
def _() -> Step:
    step, w, _, x = _start()
    whole = step.op("whole", "all-gather", V, [w], FORWARD)
    step.result(step.op("y", "multiply", V, [whole, x], FORWARD))
    return step


@shows("collectives", "sum", Category.COLLECTIVES, "result of all-reduce")
def _() -> Step:
    step, w, _, x = _start()
    h = step.op("h", "multiply", V, [w, x], FORWARD)
    reduced = step.op("sum", "all-reduce", V, [h], FORWARD)
    step.result(step.op("y", "negate", V, [reduced], FORWARD))
    return step


@shows("recomputed", "again", Category.RECOMPUTED, "made by jax.checkpoint in the backward pass")
def _() -> Step:
    step, w, _, x = _start()
    again = step.op("again", "multiply", V, [w, x], RECOMPUTED)
    step.result(step.op("dx", "multiply", V, [again, x], BACKWARD))
    return step


@shows("activations", "h", Category.ACTIVATIONS, "made in the forward pass, used in the backward pass")
def _() -> Step:
    step, w, _, x = _start()
    h = step.op("h", "multiply", V, [w, x], FORWARD)
    step.result(step.op("dx", "multiply", V, [h, x], BACKWARD))
    return step


@shows("forward_temps", "h", Category.FORWARD_TEMPS, "made and used in the forward pass")
def _() -> Step:
    step, w, _, x = _start()
    h = step.op("h", "multiply", V, [w, x], FORWARD)
    y = step.op("y", "negate", V, [h], FORWARD)
    step.result(step.op("dx", "multiply", V, [y, x], BACKWARD))
    return step


@shows("gradients", "dw", Category.GRADIENTS, "made in the backward pass, used by the update")
def _() -> Step:
    step, w, m, x = _start()
    dw = step.op("dw", "multiply", V, [w, x], BACKWARD)
    step.result(step.op("new_m", "add", V, [m, dw], PLAIN))
    return step


@shows("cotangents", "dh", Category.COTANGENTS, "made and used in the backward pass")
def _() -> Step:
    step, w, m, x = _start()
    dh = step.op("dh", "multiply", V, [w, x], BACKWARD)
    dw = step.op("dw", "multiply", V, [dh, x], BACKWARD)
    step.result(step.op("new_m", "add", V, [m, dw], PLAIN))
    return step


@shows("update_temps", "scaled", Category.UPDATE_TEMPS, "made from gradients and optimizer state or parameters")
def _() -> Step:
    step, w, m, x = _start()
    dw = step.op("dw", "multiply", V, [w, x], BACKWARD)
    scaled = step.op("scaled", "multiply", V, [m, dw], PLAIN)
    step.result(step.op("new_w", "subtract", V, [w, scaled], PLAIN))
    return step


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
class TestEveryRule:
    def test_claims_the_buffer_of_its_example(self, rule: Rule) -> None:
        name = rule.__name__
        assert name in _EXAMPLES, f"add a program that shows the rule {name!r} to this file"
        example = _EXAMPLES[name]
        assert attribute(values(example.make())[example.buffer]) == example.claim

    def test_is_needed(self, rule: Rule) -> None:
        """Without it, the buffer of its example falls into another category or into none."""
        example = _EXAMPLES[rule.__name__]
        others = tuple(other for other in RULES if other is not rule)
        assert categories(example.make(), others)[example.buffer] is not example.claim.category


def test_rules_have_names_of_their_own() -> None:
    assert len({rule.__name__ for rule in RULES}) == len(RULES)


def test_what_no_rule_explains_is_said_to_be_so() -> None:
    step, _, _, x = _start()
    step.op("unused", "negate", V, [x], UNNAMED)
    step.result(step.op("dx", "negate", V, [x], BACKWARD))
    claim = attribute(values(step)["unused"])
    assert claim == Claim(category=Category.UNATTRIBUTED, rule="none", evidence="no rule explains it")


@pytest.mark.parametrize("role", list(Role))
def test_an_argument_belongs_to_its_role(role: Role) -> None:
    step = Step()
    a = step.argument("a", role, V, donated=True)
    step.result(step.op("y", "negate", V, [a], PLAIN))
    expected = Claim(category=Category(role.value), rule="arguments", evidence="argument a, donated")
    assert attribute(values(step)["a"]) == expected


def test_what_is_written_into_a_donated_argument_belongs_to_its_role() -> None:
    step = Step()
    w = step.argument("params['w']", Role.PARAMS, V, donated=True)
    x = step.argument("x", Role.BATCH, V)
    dw = step.op("dw", "multiply", V, [w, x], BACKWARD)
    step.result(step.op("new_w", "subtract", V, [w, dw], PLAIN, shares=w))
    assert categories(step) == {
        "params['w']": Category.PARAMS,
        "x": Category.BATCH,
        "dw": Category.GRADIENTS,
        "new_w": Category.PARAMS,
    }


def test_the_table_of_the_results_belongs_to_them() -> None:
    step, w, _, x = _start()
    results = step.tuple(step.op("a", "negate", V, [w], PLAIN), step.op("b", "negate", V, [x], PLAIN), table=True)
    step.lives_out(results)
    claim = attribute(values(step)[results.name])
    assert claim == Claim(category=Category.OUTPUTS, rule="outputs", evidence="table of pointers to the results")


def test_the_table_of_a_tuple_inside_the_program_is_scratch() -> None:
    step, w, _, x = _start()
    table = step.tuple(step.op("a", "negate", V, [w], PLAIN), x, table=True)
    step.result(step.op("b", "negate", V, [step.element(table, 0)], PLAIN))
    evidence = "table of pointers to the elements of a tuple"
    claim = Claim(category=Category.WORKSPACE, rule="tuple_tables", evidence=evidence)
    assert attribute(values(step)[table.name]) == claim


def test_a_constant_of_the_program_is_a_constant() -> None:
    step, _, _, x = _start()
    table = step.op("table", "constant", V)
    step.result(step.op("y", "multiply", V, [table, x], FORWARD))
    claim = attribute(values(step)["table"])
    assert claim == Claim(category=Category.CONSTANTS, rule="constants", evidence="constant of the program")


@pytest.mark.parametrize(
    ("shape", "reads_scratch", "category"),
    [
        (tuple_of(V, array("u8", 64)), False, Category.WORKSPACE),
        (tuple_of(V, array("s8", 64)), False, Category.WORKSPACE),
        # bytes that something reads are data, as are other dtypes
        (tuple_of(V, array("u8", 64)), True, Category.FORWARD_TEMPS),
        (tuple_of(V, f32(16)), False, Category.FORWARD_TEMPS),
    ],
)
def test_only_bytes_that_nothing_reads_are_scratch(shape: Shape, reads_scratch: bool, category: Category) -> None:
    step, w, _, x = _start()
    call = step.op("call", "custom-call", shape, [w, x], FORWARD)
    part = step.element(call, int(reads_scratch))
    step.result(step.op("y", "convert", V, [part], FORWARD))
    assert categories(step)["call{1}"] is category


def test_bytes_that_nothing_reads_of_a_collective_are_no_scratch() -> None:
    step, w, _, x = _start()
    both = step.op("both", "all-gather", tuple_of(V, array("u8", 64)), [w, x], FORWARD)
    step.result(step.op("y", "convert", V, [step.element(both, 0)], FORWARD))
    assert categories(step)["both{1}"] is not Category.WORKSPACE


def test_the_result_of_a_library_call_is_no_scratch_though_nothing_reads_it() -> None:
    step, w, _, x = _start()
    step.op("call", "custom-call", tuple_of(array("u8", 64), V), [w, x], FORWARD)
    step.op("lone", "custom-call", array("u8", 64), [w, x], FORWARD)
    found = categories(step)
    assert (found["call{0}"], found["lone"]) == (Category.FORWARD_TEMPS, Category.FORWARD_TEMPS)


@pytest.mark.parametrize("op_name", [FORWARD, RECOMPUTED, BACKWARD, PLAIN, UNNAMED])
def test_a_copy_of_parameters_is_one_in_every_phase(op_name: str) -> None:
    step, w, _, x = _start()
    w16 = step.op("w16", "convert", array("bf16", 4), [w], op_name)
    transposed = step.op("transposed", "transpose", array("bf16", 4), [w16], op_name)
    step.result(step.op("y", "multiply", V, [transposed, x], BACKWARD))
    found = categories(step)
    assert (found["w16"], found["transposed"]) == (Category.PARAM_COPIES, Category.PARAM_COPIES)


def test_gathered_parameters_are_no_collectives_and_their_casts_are_gathered_too() -> None:
    step, w, _, x = _start()
    start = step.op("start", "all-gather-start", tuple_of(V, f32(8)), [w], FORWARD, holds=(1,))
    gathered = step.op("gathered", "all-gather-done", f32(8), [start], FORWARD)
    cast = step.op("cast", "convert", array("bf16", 8), [gathered], FORWARD)
    copied = step.op("copied", "transpose", V, [w], FORWARD)  # nothing of it comes from another device
    step.result(step.op("y", "multiply", f32(8), [cast, x, copied], FORWARD))
    found = categories(step)
    assert (found["start{1}"], found["cast"]) == (Category.GATHERED_PARAMS, Category.GATHERED_PARAMS)
    assert found["copied"] is Category.PARAM_COPIES


def test_parameters_that_several_devices_have_added_up_are_not_gathered() -> None:
    step, w, _, x = _start()
    norm = step.op("norm", "all-reduce", V, [w], FORWARD)
    step.result(step.op("y", "multiply", V, [norm, x], FORWARD))
    assert categories(step)["norm"] is Category.PARAM_COPIES


_SENT_BY = ("all-reduce", "all-to-all", "collective-permute", "reduce-scatter", "all-gather")


@pytest.mark.parametrize("opcode", _SENT_BY)
@pytest.mark.parametrize("name", [BACKWARD, FORWARD])
def test_values_from_other_devices_are_collectives(opcode: str, name: str) -> None:
    step, w, _, x = _start()
    made = step.op("made", "multiply", V, [w, x], name)
    sent = step.op("sent", opcode, V, [made], name)
    step.result(step.op("y", "multiply", V, [w, sent], name))
    assert categories(step)["sent"] is Category.COLLECTIVES


@pytest.mark.parametrize("opcode", _SENT_BY)
def test_what_devices_send_each_other_to_keep_it_is_what_it_is_kept_for(opcode: str) -> None:
    step, w, m, x = _start()
    h = step.op("h", "multiply", V, [w, x], FORWARD)
    kept = step.op("kept", opcode, V, [h], FORWARD)
    dw = step.op("dw", "multiply", V, [kept, x], BACKWARD)
    mean = step.op("mean", opcode, V, [dw], BACKWARD)
    step.result(step.op("new_m", "add", V, [m, mean], PLAIN))
    found = categories(step)
    assert (found["kept"], found["mean"]) == (Category.ACTIVATIONS, Category.GRADIENTS)


@pytest.mark.parametrize("name", ["h.remat", "h.remat2", "fusion.7.remat", "fusion.remat3.1"])
def test_what_xla_repeats_to_save_memory_is_recomputed(name: str) -> None:
    step, w, _, x = _start()
    step.op(name, "multiply", V, [w, x], FORWARD)
    claim = attribute(values(step)[name])
    assert claim == Claim(
        category=Category.RECOMPUTED, rule="recomputed", evidence="rematerialised by XLA to save memory"
    )


def test_a_name_with_remat_elsewhere_is_not_xlas_repetition() -> None:
    step, w, _, x = _start()
    step.op("my.rematch", "multiply", V, [w, x], FORWARD)
    step.op("remat", "multiply", V, [w, x], FORWARD)
    found = categories(step)
    assert (found["my.rematch"], found["remat"]) == (Category.FORWARD_TEMPS, Category.FORWARD_TEMPS)


def test_a_step_without_gradients_is_all_forward() -> None:
    step = Step()
    w = step.argument("params['w']", Role.PARAMS, V)
    x = step.argument("x", Role.BATCH, V)
    w16 = step.op("w16", "convert", array("bf16", 4), [w], "jit(predict)/convert")
    h = step.op("h", "multiply", V, [w16, x], "jit(predict)/Net/layers_0/mul")
    copy = step.op("copy", "copy", V, [h], UNNAMED)
    step.result(step.op("y", "negate", V, [copy], "jit(predict)/Net/neg"))
    assert categories(step) == {
        "params['w']": Category.PARAMS,
        "x": Category.BATCH,
        "w16": Category.PARAM_COPIES,
        "h": Category.FORWARD_TEMPS,
        "copy": Category.FORWARD_TEMPS,
        "y": Category.OUTPUTS,
    }


def test_what_is_computed_beside_the_loss_for_a_result_is_explained() -> None:
    step, w, _, x = _start()
    dx = step.op("dx", "multiply", V, [w, x], BACKWARD)
    h = step.op("h", "multiply", V, [w, x], "jit(step)/Net/mul")
    squares = step.op("squares", "multiply", V, [x, x], PLAIN)
    step.result(dx, step.op("metric", "add", f32(), [h, squares], PLAIN))
    found = categories(step)
    assert (found["h"], found["squares"]) == (Category.FORWARD_TEMPS, Category.FORWARD_TEMPS)


def test_what_is_computed_before_the_loss_is_kept_only_if_the_backward_pass_reads_it_itself() -> None:
    step, w, _, x = _start()
    parts = step.op("parts", "multiply", V, [x, x], PLAIN)
    mask = step.op("mask", "negate", V, [parts], PLAIN)
    h = step.op("h", "multiply", V, [w, mask], FORWARD)
    step.result(step.op("dx", "multiply", V, [h, mask], BACKWARD))
    found = categories(step)
    assert (found["parts"], found["mask"]) == (Category.FORWARD_TEMPS, Category.ACTIVATIONS)
