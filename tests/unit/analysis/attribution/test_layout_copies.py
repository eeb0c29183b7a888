"""Copies that only change the layout, in programs by hand: which they are, and who made and who reads their arrays."""

from __future__ import annotations

from dataclasses import replace

from hlo import Step
from hlo_nodes import BACKWARD, FORWARD, UNNAMED, Shape, f32, tuple_of

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Role
from memprof.analysis.records.layout_copy import LayoutCopy, Neighbour

ROWS, COLUMNS = replace(f32(2, 4), order=(1, 0)), replace(f32(2, 4), order=(0, 1))  # 32 bytes
DOT = "jit(step)/jvp(Net)/dot_general"


def _copies(step: Step) -> dict[str, LayoutCopy]:
    return {each.name: each for each in analyze(step.capture()).layout_copies}


def _between(step: Step, shape: Shape, opcode: str, changed: Shape) -> None:
    """A product, what stands between it and its reader, and the reader."""
    x = step.argument("x", Role.BATCH, f32(4, 4))
    made = step.op("made", "dot", shape, [x, x], DOT, contracting=(1,))
    moved = step.op("moved", opcode, changed, [made])
    step.result(step.op("read", "negate", changed, [moved], BACKWARD))


def test_a_copy_into_another_layout_has_both_neighbours() -> None:
    step = Step()
    w = step.argument("params['w']", Role.PARAMS, f32(2, 4))
    frames = step.frame("/home/me/make.py", 3), step.frame("/home/me/read.py", 5)
    made = step.op("made", "exponential", ROWS, [w], FORWARD, frame=frames[0])
    copy = step.op("copy", "copy", COLUMNS, [made])
    step.result(step.op("read", "negate", COLUMNS, [copy], BACKWARD, frame=frames[1]))
    assert _copies(step) == {
        "copy": LayoutCopy(
            name="copy",
            kind="copy",
            dtype="f32",
            old_dtype="f32",
            shape=(2, 4),
            layout="{0,1}",
            old_shape=(2, 4),
            old_layout="",
            size_bytes=32,
            space="hbm",
            num_runs=1,
            is_at_least=False,
            is_at_peak=True,
            op="",
            module="",
            source="",
            producer=Neighbour(name="made", op=FORWARD, source="/home/me/make.py:3", role="operation"),
            consumer=Neighbour(name="read", op=BACKWARD, source="/home/me/read.py:5", role="operation"),
        )
    }


def test_a_copy_into_the_same_layout_or_of_one_element_is_none() -> None:
    for shape in (COLUMNS, f32(), replace(f32(1, 4), order=(0, 1)), replace(f32(0, 4), order=(0, 1))):
        step = Step()
        _between(step, shape, "copy", replace(shape, order=(1, 0)) if shape.dimensions in ((1, 4), (0, 4)) else shape)
        assert not _copies(step)


def test_a_copy_that_converts_counts_if_the_order_changes() -> None:
    """libtpu's copies may convert, and types of other sizes have other tiles (0.0.50)."""
    for dtypes, size_bytes in ((("f32", "bf16"), 16), (("bf16", "f32"), 32)):
        tiles = {"f32": (4, 128), "bf16": (8, 128)}
        for order, expected in (((0, 1), ["moved"]), ((1, 0), [])):
            step = Step()
            old, new = (Shape(dtype, (2, 4), order=(1, 0), tile=tiles[dtype]) for dtype in dtypes)
            _between(step, old, "copy", replace(new, order=order))
            found = _copies(step)
            assert list(found) == expected
            assert [(each.old_dtype, each.dtype, each.size_bytes) for each in found.values()] == [
                (*dtypes, size_bytes) for _ in expected
            ]


def test_copies_that_write_most_in_a_step_come_first() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, ROWS)
    wide, wide_back = replace(f32(4, 4), order=(1, 0)), replace(f32(4, 4), order=(0, 1))  # 64 bytes
    y = step.argument("y", Role.BATCH, wide)
    small = step.op("small", "copy", COLUMNS, [x])
    large = step.op("large", "copy", wide_back, [y])
    step.result(step.op("a", "negate", COLUMNS, [small]), step.op("b", "negate", wide_back, [large]))
    assert list(_copies(step)) == ["large", "small"]


def test_a_transposition_counts_and_a_reshape_only_with_tiles() -> None:
    for opcode, changed, kind in (
        ("transpose", f32(4, 2), "transpose"),
        ("reshape", f32(8), None),
        ("reshape", replace(f32(8), order=(0,), tile=(8,)), "reshape"),
    ):
        step = Step()
        _between(step, f32(2, 4), opcode, changed)
        found = _copies(step)
        assert [each.kind for each in found.values()] == ([kind] if kind else [])
        for each in found.values():
            assert (each.shape, each.old_shape, each.size_bytes) == (changed.dimensions, (2, 4), 32)


def test_a_fusion_counts_if_it_computes_nothing() -> None:
    for second, expected in (("bitcast", "copy"), ("exponential", None)):
        step = Step()
        x = step.argument("x", Role.BATCH, ROWS)
        fused = step.computation("fused", fused=True)
        copied = fused.op("copied", "copy", COLUMNS, [fused.parameter(ROWS)])
        fused.op("second", second, COLUMNS, [copied])
        step.result(step.op("fusion", "fusion", COLUMNS, [x], called=[fused]))
        assert [(each.name, each.kind) for each in _copies(step).values()] == (
            [("fusion", expected)] if expected else []
        )


def test_a_fusion_without_a_name_is_called_by_its_last_operation_that_has_one() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, ROWS)
    fused = step.computation("fused", fused=True)
    first = fused.op("first", "exponential", ROWS, [fused.parameter(ROWS)], FORWARD)
    second = fused.op("second", "sine", ROWS, [first], BACKWARD)
    fused.op("last", "negate", ROWS, [second], UNNAMED)
    made = step.op("fusion", "fusion", ROWS, [x], UNNAMED, called=[fused])
    copy = step.op("copy", "copy", COLUMNS, [made])
    step.result(step.op("read", "negate", COLUMNS, [copy], BACKWARD))
    assert _copies(step)["copy"].producer == Neighbour(name="fusion", op=BACKWARD, source="", role="operation")


def test_arguments_and_results_ask_for_layouts_too() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, ROWS)
    first = step.op("first", "copy", COLUMNS, [x])
    negated = step.op("negated", "negate", COLUMNS, [first], FORWARD)
    step.result(step.op("second", "copy", ROWS, [negated]))
    copies = _copies(step)
    assert copies["first"].producer == Neighbour(name="", op="x", source="", role="argument")
    assert copies["first"].consumer.name == copies["second"].producer.name == "negated"
    assert copies["second"].consumer.role == "result"


def test_neighbours_are_found_through_other_copies_and_products_before_others() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, ROWS)
    made = step.op("made", "exponential", ROWS, [x], FORWARD)
    first = step.op("first", "copy", COLUMNS, [made])
    cast = step.op("second", "transpose", f32(4, 2), [first])
    added = step.op("added", "negate", f32(4, 2), [cast], FORWARD)
    product = step.op("product", "dot", f32(4, 4), [cast, added], DOT, contracting=(1,))
    step.result(product)
    for copy in _copies(step).values():
        assert (copy.producer.name, copy.consumer.name) == ("made", "product")


def test_a_copy_in_a_loop_of_what_the_loop_does_not_change_is_of_what_was_there_before() -> None:
    for is_argument in (True, False):
        step = Step()
        carry = tuple_of(ROWS)
        body, condition = step.computation("body"), step.computation("condition")
        kept = body.element(body.parameter(carry), 0)
        copy = body.op("copy", "copy", COLUMNS, [kept])
        body.op("read", "negate", COLUMNS, [copy], FORWARD)
        body.tuple(kept)
        condition.parameter(carry)
        condition.op("go_on", "constant", Shape("pred"))
        x = step.argument("x", Role.BATCH, ROWS)
        start = x if is_argument else step.op("made", "exponential", ROWS, [x], FORWARD)
        loop = step.op("loop", "while", carry, [step.tuple(start)], UNNAMED, called=[body, condition], number=3)
        step.result(step.element(loop, 0))
        expected = ("x", "argument") if is_argument else (FORWARD, "operation")
        found = _copies(step)["copy"]
        assert (found.producer.op, found.producer.role) == expected
        assert (found.consumer.name, found.num_runs) == ("read", 3)


def test_a_copy_in_a_loop_counts_as_often_as_it_runs() -> None:
    for trips, num_runs in ((5, 5), (0, 1)):  # 0: unknown
        step = Step()
        carry = tuple_of(ROWS)
        body, condition = step.computation("body"), step.computation("condition")
        state = body.parameter(carry)
        copy = body.op("copy", "copy", COLUMNS, [body.element(state, 0)])
        body.tuple(body.op("made", "negate", ROWS, [copy], FORWARD))
        condition.parameter(carry)
        condition.op("go_on", "constant", Shape("pred"))
        x = step.argument("x", Role.BATCH, ROWS)
        loop = step.op("loop", "while", carry, [step.tuple(x)], UNNAMED, called=[body, condition], number=trips)
        step.result(step.element(loop, 0))
        copy_found = _copies(step)["copy"]
        assert (copy_found.num_runs, copy_found.is_at_least) == (num_runs, not trips)
        assert copy_found.step_bytes == 32 * num_runs
        assert copy_found.producer.name == copy_found.consumer.name == "made"  # of the turn before
