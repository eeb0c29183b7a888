"""Arrays that belong together because they are computed from each other element by element."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from hlo import Step, program_of
from hlo_nodes import BACKWARD, FORWARD, PLAIN, Node, array, f32, tuple_of

from memprof.analysis.attribution.aliases import AliasSets
from memprof.analysis.attribution.dataflow import Dataflow
from memprof.analysis.attribution.elementwise import Steps, _twins
from memprof.analysis.hlo.buffer_table import decode_buffer_table
from memprof.analysis.records.categories import Role

A, B = f32(8, 4), f32(4, 8)  # 32 elements each
ROW = f32(4)


class _Known:
    """The steps of a program, with names in place of groups. The second leaf of `name` is `name.1`."""

    def __init__(self, step: Step) -> None:
        proto = step.proto()
        program = program_of(proto)
        groups = AliasSets(program, decode_buffer_table(proto, program))
        self._name: dict[int, str] = {}
        for index in groups.order:
            for number, group in enumerate(groups.results[index]):
                self._name.setdefault(group, program.instructions[index].name + (f".{number}" if number else ""))
        self._group = {name: group for group, name in self._name.items()}
        self.steps = Steps(program, Dataflow(program, groups, dict(enumerate(step._arguments))))

    def names(self, groups: Iterable[int]) -> set[str]:
        return {self._name[group] for group in groups}

    def size(self, name: str) -> int:
        return self.steps.size[self._group[name]]

    def grown(self, *seeds: str) -> set[str]:
        return self.names(self.steps.grown([self._group[seed] for seed in seeds]))

    def alike(self, name: str) -> list[str]:
        (step,) = (each for each in self.steps.all if each.instruction.name == name)
        return [self._name[group] for group in self.steps.alike(step)]


class _Layer(Step):
    """`h`, a product of an input and a weight, in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.w = self.argument("params['w']", Role.PARAMS, f32(4, 4))
        self.x = self.argument("x", Role.BATCH, A)
        self.h = self.op("h", "dot", A, [self.x, self.w], FORWARD)

    def forward(self, name: str, opcode: str, *operands: Node, shape: object = A) -> Node:
        return self.op(name, opcode, shape, operands, FORWARD)  # type: ignore[arg-type]


def test_a_step_says_what_it_reads_and_makes() -> None:
    step = _Layer()
    sine = step.forward("sine", "sine", step.h)
    step.result(step.op("dh", "multiply", A, [sine, step.x], BACKWARD))
    known = _Known(step)
    found = {
        each.instruction.name: (each.opcode, each.size, each.is_elementwise, each.is_backward)
        for each in known.steps.all
    }
    assert found == {
        "h": ("dot", 32, False, False),
        "sine": ("sine", 32, True, False),
        "dh": ("multiply", 32, True, True),
    }
    product = known.steps.all[0]
    assert [None if group is None else known.names([group]) for group in map(product.operand, range(3))] == [
        {"x"},
        {"params['w']"},
        None,
    ]
    assert (known.size("x"), known.size("params['w']"), known.size("dh")) == (32, 16, 32)


def test_the_update_has_no_steps() -> None:
    step = _Layer()
    dw = step.op("dw", "dot", f32(4, 4), [step.x, step.h], BACKWARD)
    step.result(step.op("new_w", "subtract", f32(4, 4), [step.w, dw], PLAIN))
    known = _Known(step)
    assert [each.instruction.name for each in known.steps.all] == ["h", "dw"]


def test_families_grow_along_operations_of_single_elements_in_both_directions() -> None:
    step = _Layer()
    sine = step.forward("sine", "sine", step.h)
    turned = step.forward("turned", "transpose", sine, shape=B)
    step.forward("sums", "reduce", turned, shape=ROW)
    known = _Known(step)
    for seed in ("h", "sine", "turned"):
        assert known.grown(seed) == {"h", "sine", "turned"}
    assert known.grown("sums") == {"sums"}
    assert known.grown("h", "sums") == {"h", "sine", "turned", "sums"}


def test_two_arrays_that_meet_in_the_forward_pass_stay_apart_and_their_sum_needs_both() -> None:
    step = _Layer()
    other = step.forward("other", "dot", step.x, step.w)
    step.forward("sum", "add", step.h, other)
    known = _Known(step)
    assert known.grown("h") == {"h"}
    assert known.grown("sum") == {"sum"}
    assert known.grown("h", "other") == {"h", "other", "sum"}
    assert known.alike("sum") == ["h", "other"]


def test_in_the_backward_pass_what_meets_an_array_of_the_forward_pass_is_its_cotangent() -> None:
    step = _Layer()
    loss = step.forward("loss", "reduce", step.h, shape=ROW)
    dy = step.op("dy", "dot", A, [loss, step.w], BACKWARD)
    met = step.op("met", "multiply", A, [dy, step.h], BACKWARD)
    other = step.op("other", "dot", A, [dy, step.w], BACKWARD)
    step.result(step.op("sum", "add", A, [met, other], BACKWARD))
    known = _Known(step)
    assert known.grown("h") == {"h", "dy", "met"}
    assert known.grown("other") == {"other"}  # two cotangents that meet stay apart


@pytest.mark.parametrize(
    ("opcode", "shape", "is_minor"),
    [("broadcast", ROW, True), ("constant", A, True), ("negate", A, False)],
)
def test_what_is_spread_over_an_array_does_not_connect_it(opcode: str, shape: object, is_minor: bool) -> None:
    step = _Layer()
    small = step.argument("small", Role.BATCH, shape)  # type: ignore[arg-type]
    spread = step.op("spread", opcode, A, [] if opcode == "constant" else [small], FORWARD)
    step.forward("scaled", "multiply", step.h, spread)
    known = _Known(step)
    assert ("spread" in known.names(known.steps.is_minor)) is is_minor
    assert known.grown("h") == ({"h", "scaled"} if is_minor else {"h"})
    assert known.alike("scaled") == (["h"] if is_minor else ["h", "spread"])


def test_what_is_made_of_spread_values_is_spread_too_unless_they_are_two() -> None:
    step = _Layer()
    rows, columns = step.argument("rows", Role.BATCH, ROW), step.argument("columns", Role.BATCH, f32(8))
    first, second = (step.forward(f"of_{each.name}", "broadcast", each) for each in (rows, columns))
    step.forward("one", "add", first, step.forward("negated", "negate", first))
    step.forward("both", "add", first, second)
    known = _Known(step)
    minor = known.names(known.steps.is_minor)
    assert minor & {"of_rows", "of_columns", "negated", "both"} == {"of_rows", "of_columns", "negated"}


def test_truth_values_connect_nothing() -> None:
    step = _Layer()
    other = step.forward("other", "dot", step.x, step.w)
    is_large = step.forward("is_large", "compare", step.h, other, shape=array("pred", 8, 4))
    step.forward("chosen", "select", is_large, other, other)
    known = _Known(step)
    assert known.grown("other") == {"other", "chosen"}


def test_a_loop_s_stack_belongs_to_its_pieces() -> None:
    step = _Layer()
    stack, index = step.argument("stack", Role.OTHER_STATE, f32(3, 8, 4)), step.argument("i", Role.BATCH, array("s32"))
    filled = step.op("filled", "dynamic-update-slice", f32(3, 8, 4), [stack, step.h, index], FORWARD)
    piece = step.op("piece", "dynamic-slice", A, [filled, index], BACKWARD)
    step.result(step.op("dh", "negate", A, [piece], BACKWARD))
    known = _Known(step)
    assert known.names(known.steps.stacked) == {"filled"}
    assert known.size("filled") == 96
    assert known.grown("h") == {"h", "filled", "piece", "dh"}
    assert known.grown("piece") == {"piece", "dh"}


def test_cheap_operations_that_xla_repeats_are_twins() -> None:
    step = _Layer()
    for number in range(3):
        step.forward(f"part{number}", "slice", step.h, shape=ROW)
    step.forward("other_shape", "slice", step.h, shape=f32(5))
    step.op("other_name", "slice", ROW, [step.h], BACKWARD)
    step.forward("other_operand", "slice", step.x, shape=ROW)
    step.forward("sums", "reduce", step.h, shape=ROW)
    step.forward("sums_again", "reduce", step.h, shape=ROW)  # it is not cheap
    known = _Known(step)
    assert known.grown("part1") == {"part0", "part1", "part2"}
    for alone in ("other_shape", "other_name", "other_operand", "sums"):
        assert known.grown(alone) == {alone}


def test_what_is_made_of_twins_in_the_same_way_are_twins() -> None:
    step = _Layer()
    parts = [step.forward(f"part{number}", "slice", step.h, shape=ROW) for number in range(2)]
    for number, part in enumerate(parts):
        step.forward(f"ends{number}", "slice", part, shape=f32(2))
    assert _Known(step).grown("ends0") == {"ends0", "ends1"}


def test_only_constants_are_taken_for_equal() -> None:
    """The first two differ in a constant (groups 7 and 8), the others read other values, among them the first group."""

    def step(output: int, read: int) -> Any:
        leaf = SimpleNamespace(dtype="f32", dimensions=(4,))
        instruction = SimpleNamespace(op_name="", stack_frame_id=0, dimensions=(), shape=SimpleNamespace(leaves=[leaf]))
        return SimpleNamespace(
            is_elementwise=True, opcode="sine", instruction=instruction, inputs=[(0, read)], output=output
        )

    steps = [step(10, 7), step(11, 8), step(12, 0), step(13, 1)]
    assert _twins(steps, constants=[7, 8]) == {10: [10, 11], 11: [10, 11]}


def test_of_a_library_call_the_first_result_counts() -> None:
    step = _Layer()
    call = step.op("call", "custom-call", tuple_of(A, array("u8", 100)), [step.x, step.w], FORWARD, target="gemm")
    step.forward("sine", "sine", step.element(call, 0))
    known = _Known(step)
    (made,) = (each for each in known.steps.all if each.instruction.name == "call")
    assert (known.names([made.output]), made.size) == ({"call"}, 32)
    assert (known.size("call"), known.size("call.1")) == (32, 100)
    assert known.grown("sine") == {"call", "sine"}
