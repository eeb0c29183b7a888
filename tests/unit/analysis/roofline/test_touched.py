"""The elements that kernels read and write, counted by hand. An element of f32 has 4 bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hlo import Step, program_of
from hlo_nodes import Computation, Node, Shape, array, f32, tuple_of

from memprof.analysis.roofline.touched import Touched, touched

INDEX = array("s32")


def _touched(step: Step, name: str) -> Touched:
    program = program_of(step.proto())
    index = next(index for index, each in enumerate(program.instructions) if each.name == name)
    return touched(program, program.instructions[index], index)


def _alone(opcode: str, operands: Sequence[Shape], result: Shape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes that an instruction reads and writes as a kernel of its own."""
    step = Step()
    nodes = [step.op(f"a{number}", "constant", shape) for number, shape in enumerate(operands)]
    step.op("kernel", opcode, result, nodes)
    found = _touched(step, "kernel")
    return found.read_bytes, found.written_bytes


@pytest.mark.parametrize(
    ("opcode", "operands", "result", "read", "written"),
    [
        ("add", [f32(6), f32(6)], f32(6), (24, 24), 24),
        ("convert", [array("bf16", 6)], f32(6), (12,), 24),
        # A slice reads what it returns; its indices are read as a whole.
        ("slice", [f32(100)], f32(8), (32,), 32),
        ("dynamic-slice", [f32(100), INDEX], f32(8), (32, 4), 32),
        ("dynamic-slice", [f32(10, 10), INDEX, INDEX], f32(2, 4), (32, 4, 4), 32),
        ("gather", [f32(10, 10), array("s32", 3)], f32(3, 10), (120, 12), 120),
        ("gather", [f32(2), array("s32", 3)], f32(3), (8, 12), 12),  # twice the same element
        # A reduction reads all that it sums.
        ("reduce", [f32(4, 8), f32()], f32(4), (128, 4), 16),
        ("broadcast", [f32(4)], f32(8, 4), (16,), 128),
        ("concatenate", [f32(2), f32(3)], f32(5), (8, 12), 20),
        ("pad", [f32(4), f32()], f32(10), (16, 4), 40),
        ("pad", [f32(10), f32()], f32(4), (16, 4), 16),  # it can also cut
        # An update in place reads and writes its part.
        ("dynamic-update-slice", [f32(100), f32(8), INDEX], f32(100), (0, 32, 4), 32),
        ("dynamic-update-slice", [f32(10, 10), f32(2, 4), INDEX, INDEX], f32(10, 10), (0, 32, 4, 4), 32),
        ("scatter", [f32(100), array("s32", 3), f32(3)], f32(100), (0, 12, 12), 12),
        ("scatter", [f32(2), array("s32", 3), f32(3)], f32(2), (0, 12, 12), 8),
        ("bitcast", [f32(6)], f32(2, 3), (24,), 24),
    ],
)
def test_what_an_instruction_reads_and_writes(
    opcode: str, operands: list[Shape], result: Shape, read: tuple[int, ...], written: int
) -> None:
    assert _alone(opcode, operands, result) == (read, (written,))


def test_a_scatter_of_several_arrays_reads_its_indices_and_all_updates() -> None:
    operands = [f32(100), f32(50), array("s32", 3), f32(3), f32(3)]
    read, written = _alone("scatter", operands, tuple_of(f32(100), f32(50)))
    assert read == (0, 0, 12, 12, 12)
    assert sum(written) == 24  # three elements of each


def test_a_dot_is_its_own_product() -> None:
    step = Step()
    a, b = (step.op(name, "constant", f32(4, 4)) for name in "ab")
    dot = step.op("dot", "dot", f32(4, 4), [a, b], contracting=(1,))
    index = [a, b, dot].index(dot)
    assert _touched(step, "dot") == Touched(read_bytes=(64, 64), written_bytes=(64,), products=((index, 1.0),))


class _Fusion:
    """A fusion of some arrays, whose operations a test adds before it looks."""

    def __init__(self, *shapes: Shape) -> None:
        self.step = Step()
        self.operands = [self.step.op(f"a{number}", "constant", shape) for number, shape in enumerate(shapes)]
        self.inside: Computation = self.step.computation("fused", fused=True)
        self.parameters = [self.inside.parameter(shape) for shape in shapes]

    def op(self, opcode: str, shape: Shape, *operands: Node) -> Node:
        contracting = (1,) if opcode == "dot" else ()
        return self.inside.op(f"{opcode}.{len(self.inside.nodes)}", opcode, shape, operands, contracting=contracting)

    def found(self) -> Touched:
        self.step.op("kernel", "fusion", self.inside.root.shape, self.operands, called=[self.inside])
        return _touched(self.step, "kernel")

    def bytes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        found = self.found()
        return found.read_bytes, found.written_bytes


def test_a_fusion_reads_what_its_slices_return() -> None:
    fusion = _Fusion(f32(100), f32(8))
    x, y = fusion.parameters
    fusion.op("add", f32(8), fusion.op("slice", f32(8), fusion.op("negate", f32(100), x)), y)
    assert fusion.bytes() == ((32, 32), (32,))


def test_a_fusion_does_not_read_what_no_operation_needs() -> None:
    fusion = _Fusion(f32(100), f32(8))
    fusion.op("negate", f32(8), fusion.parameters[1])
    assert fusion.bytes() == ((0, 32), (32,))


def test_uses_of_a_value_add_up_to_at_most_its_size() -> None:
    for size, read in ((100, 8 + 8), (10, 10)):
        fusion = _Fusion(f32(size))
        first, second = (fusion.op("slice", f32(8), fusion.parameters[0]) for _ in range(2))
        fusion.op("add", f32(8), first, second)
        assert fusion.bytes() == ((4 * read,), (32,))


def test_a_value_that_is_a_result_twice_is_needed_once() -> None:
    fusion = _Fusion(f32(10))
    result = fusion.op("negate", f32(10), fusion.parameters[0])
    fusion.inside.tuple(result, result)
    assert fusion.bytes() == ((40,), (40, 40))


def test_each_result_of_a_fusion_is_written() -> None:
    fusion = _Fusion(f32(10), f32(4, 5))
    x, y = fusion.parameters
    zero = fusion.op("constant", f32())
    fusion.inside.tuple(fusion.op("negate", f32(10), x), fusion.op("reduce", f32(4), y, zero))
    assert fusion.bytes() == ((40, 80), (40, 16))


def test_a_part_of_a_reduction_needs_the_same_part_of_its_operand() -> None:
    fusion = _Fusion(f32(8, 5))
    sums = fusion.op("reduce", f32(8), fusion.parameters[0], fusion.op("constant", f32()))
    fusion.op("slice", f32(2), sums)
    assert fusion.bytes() == ((4 * 40 // 4,), (8,))


def test_parts_of_elements_are_rounded_up() -> None:
    """2 of 3 sums need two thirds of 10 elements: 7 of them."""
    fusion = _Fusion(f32(10))
    sums = fusion.op("reduce", f32(3), fusion.parameters[0], fusion.op("constant", f32()))
    fusion.op("slice", f32(2), sums)
    assert fusion.bytes() == ((28,), (8,))


@pytest.mark.parametrize("through", ["", "bitcast", "reshape"])
def test_a_fused_update_of_a_parameter_writes_its_part(through: str) -> None:
    fusion = _Fusion(f32(100), f32(8), INDEX)
    target, update, index = fusion.parameters
    if through:
        target = fusion.op(through, f32(10, 10), target)
    updated = fusion.op("dynamic-update-slice", target.shape, target, fusion.op("negate", f32(8), update), index)
    if through:
        fusion.op(through, f32(100), updated)
    assert fusion.bytes() == ((0, 32, 4), (32,))


def test_a_fused_update_of_a_computed_value_writes_the_whole() -> None:
    fusion = _Fusion(f32(100), f32(8), INDEX)
    target, update, index = fusion.parameters
    fusion.op("dynamic-update-slice", f32(100), fusion.op("negate", f32(100), target), update, index)
    assert fusion.bytes() == ((4 * 92, 32, 4), (400,))  # what the update overwrites is not read


def test_a_fused_scatter_into_a_computed_value_reads_the_value() -> None:
    fusion = _Fusion(f32(100), array("s32", 3), f32(3))
    target, places, updates = fusion.parameters
    fusion.op("scatter", f32(100), fusion.op("negate", f32(100), target), places, updates)
    assert fusion.bytes() == ((400, 12, 12), (400,))


def test_a_fused_scatter_of_a_parameter_writes_its_updates() -> None:
    fusion = _Fusion(f32(100), array("s32", 3), f32(3))
    fusion.op("scatter", f32(100), *fusion.parameters)
    assert fusion.bytes() == ((0, 12, 12), (12,))


def test_a_fusion_within_a_fusion_needs_what_its_part_of_the_result_needs() -> None:
    """The inner one returns 8 sums of 5 elements each, of which the outer one takes 2."""
    fusion = _Fusion(f32(8, 5))
    inner = fusion.step.computation("inner", fused=True)
    inner.op("sums", "reduce", f32(8), [inner.parameter(f32(8, 5)), inner.op("zero", "constant", f32())])
    sums = fusion.inside.op("inner_fusion", "fusion", f32(8), fusion.parameters, called=[inner])
    fusion.op("slice", f32(2), sums)
    assert fusion.bytes() == ((4 * 10,), (8,))


def test_elements_of_a_tuple_are_separate_arrays() -> None:
    """Two results of 6 elements each need 6 of each operation inside, and 6 of the parameter for each of them."""
    fusion = _Fusion(f32(20))
    inner = fusion.step.computation("inner", fused=True)
    given = inner.parameter(f32(20))
    inner.tuple(*(inner.op(f"slice{number}", "slice", f32(6), [given]) for number in range(2)))
    both = fusion.inside.op("inner_fusion", "fusion", tuple_of(f32(6), f32(6)), fusion.parameters, called=[inner])
    first, second = (fusion.inside.element(both, number) for number in range(2))
    fusion.op("add", f32(6), first, second)
    assert fusion.bytes() == ((4 * 12,), (24,))


def test_a_product_counts_with_the_part_of_its_result_that_is_needed() -> None:
    fusion = _Fusion(f32(4, 6), f32(6, 4))
    product = fusion.op("dot", f32(4, 4), *fusion.parameters)
    fusion.op("slice", f32(1, 4), product)
    found = fusion.found()
    assert [share for _, share in found.products] == [0.25]
    assert found.read_bytes == (24, 24)  # a quarter of each


def test_a_product_in_an_inner_fusion_counts_once() -> None:
    fusion = _Fusion(f32(4, 6), f32(6, 4))
    inner = fusion.step.computation("inner", fused=True)
    a, b = (inner.parameter(shape) for shape in (f32(4, 6), f32(6, 4)))
    inner.op("product", "dot", f32(4, 4), [a, b], contracting=(1,))
    made = fusion.inside.op("inner_fusion", "fusion", f32(4, 4), fusion.parameters, called=[inner])
    fusion.op("slice", f32(2, 4), made)
    found = fusion.found()
    assert [share for _, share in found.products] == [0.5]
    assert found.read_bytes == (48, 48)
