"""The operations of a program: what each reads, makes and moves."""

from __future__ import annotations

from hlo import Step, program_of
from hlo_nodes import BACKWARD, FORWARD, UNNAMED, array, f32, tuple_of

from memprof.analysis.attribution.aliases import AliasSets
from memprof.analysis.attribution.op_names import Named
from memprof.analysis.attribution.operations import find_operations
from memprof.analysis.hlo.buffer_table import decode_buffer_table
from memprof.analysis.records.categories import Role

V = f32(4)
Told = dict[str, tuple[tuple[str, ...], tuple[str, ...], str | None, str | None, bool, Named]]


def _told(step: Step) -> tuple[Told, set[str]]:
    """By instruction: what it reads, makes and moves, what chooses, whether it is fetched, and the phase in its name.

    A value is called by the first instruction that has it, and `name.1` by its second leaf. Then the values that are
    made of constants inside a fusion.
    """
    proto = step.proto()
    program = program_of(proto)
    groups = AliasSets(program, decode_buffer_table(proto, program))
    names: dict[int, str] = {}
    for index in groups.order:
        for number, group in enumerate(groups.results[index]):
            names.setdefault(group, program.instructions[index].name + (f".{number}" if number else ""))
    found = find_operations(program, groups)
    told: Told = {}
    for each in found.in_order:
        name = program.instructions[each.index].name
        told[f"{name} again" if name in told else name] = (
            tuple(f"{number}: {names[group]}" for number, group in each.inputs),
            tuple(names[group] for group in each.outputs),
            None if each.moved is None else names[each.moved],
            None if each.choice is None else names[each.choice],
            each.is_fetched,
            each.named,
        )
    return told, {names[group] for group in found.constants}


def test_what_only_passes_values_on_is_no_operation_and_its_readers_read_through_it() -> None:
    step = Step()
    x, y = step.argument("x", Role.BATCH, V), step.argument("y", Role.BATCH, V)
    packed = step.tuple(x, y)
    step.op("sum", "add", V, [step.element(packed, 1), step.op("view", "bitcast", V, [x])], FORWARD)
    told, _ = _told(step)
    assert told == {"sum": (("0: y", "1: x"), ("sum",), None, None, False, Named.FORWARD)}


def test_what_moves_data_says_which() -> None:
    step = Step()
    x, stack = step.argument("x", Role.BATCH, V), step.argument("stack", Role.BATCH, f32(3, 4))
    index = step.argument("index", Role.BATCH, array("s32"))
    for opcode in ("copy", "transpose", "reshape", "reverse", "slice"):
        step.op(opcode, opcode, V, [x])
    step.op("piece", "dynamic-slice", V, [stack, index, index])
    step.op("written", "dynamic-update-slice", f32(3, 4), [stack, x, index, index], BACKWARD)
    step.op("start", "copy-start", tuple_of(V, V, array("u32")), [x], holds=(0, 2))
    step.op("sine", "sine", V, [x])
    told, _ = _told(step)
    assert {name: each[2] for name, each in told.items()} == {
        **dict.fromkeys(("copy", "transpose", "reshape", "reverse", "slice"), "x"),
        "piece": "stack",
        "written": "x",
        "start": "x",
        "sine": None,
    }
    assert told["written"] == (
        ("0: stack", "1: x", "2: index", "3: index"),
        ("written",),
        "x",
        None,
        False,
        Named.BACKWARD,
    )


def test_a_choice_between_values_is_by_its_first_operand() -> None:
    step = Step()
    mask, x, y = (step.argument(name, Role.BATCH, V) for name in ("mask", "x", "y"))
    step.op("chosen", "select", V, [mask, x, y])
    told, _ = _told(step)
    assert told == {"chosen": (("0: mask", "1: x", "2: y"), ("chosen",), None, "mask", False, Named.NOTHING)}


def test_what_comes_unchanged_from_other_devices_is_fetched() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    fetching = ("all-gather", "collective-permute", "all-to-all", "ragged-all-to-all", "collective-broadcast")
    others = ("all-reduce", "reduce-scatter", "negate")
    for opcode in (*fetching, *others):
        step.op(opcode, opcode, V, [x], groups=((0, 1),) if opcode in ("all-gather", "collective-permute") else ())
    told, _ = _told(step)
    assert [name for name, each in told.items() if each[4]] == list(fetching)


def test_a_combined_collective_is_one_operation_for_each_operand_and_has_no_name() -> None:
    step = Step()
    x, y = step.argument("x", Role.BATCH, V), step.argument("y", Role.BATCH, f32(2))
    step.op("both", "all-gather", tuple_of(f32(16), f32(8)), [x, y], FORWARD)
    told, _ = _told(step)
    assert told == {
        "both": (("0: x",), ("both",), None, None, True, Named.NOTHING),
        "both again": (("1: y",), ("both.1",), None, None, True, Named.NOTHING),
    }


def test_constants_inside_a_fusion_and_what_is_spread_of_them_are_no_operations() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, f32())
    fused = step.computation("fused", fused=True)
    given = fused.parameter(f32())
    half = fused.op("half", "broadcast", V, [fused.op("c", "constant", f32())])
    spread = fused.op("spread", "broadcast", V, [given])  # of an argument
    fused.op("product", "multiply", V, [half, spread], FORWARD)
    step.op("fusion", "fusion", V, [x], called=[fused])
    zeros = step.op("zeros", "broadcast", V, [step.op("zero", "constant", f32())], UNNAMED)  # it lies in memory
    step.op("sum", "add", V, [zeros, zeros])
    told, constants = _told(step)
    assert constants == {"c", "half"}
    assert list(told) == ["spread", "product", "zero", "zeros", "sum"]
    assert told["product"][0] == ("0: half", "1: spread")
