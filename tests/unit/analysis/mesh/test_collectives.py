"""Collectives by kind and axes of the mesh, in programs by hand: whom they connect, how often, what they carry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hlo import Step, values
from hlo_nodes import BACKWARD, FORWARD, Computation, Node, array, f32, tuple_of

from memprof.analysis.hlo.hlo_proto import CollectiveDevices, HloProto
from memprof.analysis.hlo.replica_groups import axes_of_groups, axes_of_pairs, device_groups, part_of_axes
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Topology
from memprof.analysis.records.categories import Phase, Role
from memprof.analysis.records.report import CollectiveTraffic, PartitionerNote
from memprof.errors import InternalError

V = f32(4)  # 16 bytes
AXES = {"fsdp": 4, "tp": 2}
# Devices are numbered with tp varying fastest: fsdp 0 has 0 and 1, fsdp 1 has 2 and 3, ...
ALONG_FSDP, ALONG_TP = ((0, 2, 4, 6), (1, 3, 5, 7)), ((0, 1), (2, 3), (4, 5), (6, 7))
ALL = (tuple(range(8)),)
HALF_OF_FSDP = ((0, 2), (4, 6), (1, 3), (5, 7))


def instruction(**fields: Any) -> Any:
    """A collective, with its devices written in one of XLA's ways."""
    message = HloProto().hlo_module.computations.add().instructions.add()
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(message, name).extend(each.SerializeToString() for each in value)
        else:
            setattr(message, name, value.SerializeToString())
    return message


def mesh_groups(
    axes: dict[str, int],
    *taken: tuple[int, int, int] | int,
    device_ids: tuple[int, ...] = (),
    iota_ids: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
) -> Any:
    """XLA's groups along axes of its own mesh, each by its number, or with the part of it (pre-size and size)."""
    message = CollectiveDevices["MeshGroups"]()
    for name, size in axes.items():
        message.mesh.axes.add(name=name, size=size)
    message.mesh.device_ids.extend(device_ids)
    if iota_ids:
        message.mesh.iota_ids.reshape_dims.extend(iota_ids[0])
        message.mesh.iota_ids.transpose_perm.extend(iota_ids[1])
    for each in taken:
        if isinstance(each, int):
            message.axes.add(axis=each)
        else:
            reference = message.axes.add(axis=each[0])
            reference.part.pre_size, reference.part.size = each[1:]
    return message


def iota(num_groups: int, per_group: int, sizes: tuple[int, ...], order: tuple[int, ...]) -> Any:
    return CollectiveDevices["IotaGroups"](
        num_groups=num_groups, num_devices_per_group=per_group, reshape_dims=sizes, transpose_perm=order
    )


@pytest.mark.parametrize(
    ("message", "groups"),
    [
        # [2,4]<=[4,2]T(1,0), which jaxlib 0.10.2 and 0.12 write of a gather along the first of two axes
        (instruction(iota_groups=iota(2, 4, (4, 2), (1, 0))), ALONG_FSDP),
        (instruction(iota_groups=iota(4, 2, (8,), (0,))), ALONG_TP),
        (instruction(mesh_groups=mesh_groups({"axis_0": 4, "axis_1": 1, "axis_2": 2}, 0)), ALONG_FSDP),
        (instruction(mesh_groups=mesh_groups(AXES, 1)), ALONG_TP),
        (instruction(mesh_groups=mesh_groups(AXES, 0, 1)), ALL),
        (instruction(mesh_groups=mesh_groups({"a": 2, "b": 2}, 1, device_ids=(0, 2, 1, 3))), ((0, 2), (1, 3))),
        # mesh['axis_0'=4,'axis_1'=1,'axis_2'=2], device_ids=([2,4]T(1,0)) {'axis_0'}, of a mesh dp=2, fsdp=4 (0.10.2)
        (
            instruction(mesh_groups=mesh_groups({"a": 4, "b": 1, "c": 2}, 0, iota_ids=((2, 4), (1, 0)))),
            ((0, 1, 2, 3), (4, 5, 6, 7)),
        ),
        # an axis of 8 as 4 times 2, along the second part, and as 2 times 2 times 2, along the first and the last
        (instruction(mesh_groups=mesh_groups({"a": 8}, (0, 4, 2))), ALONG_TP),
        (instruction(mesh_groups=mesh_groups({"a": 8}, (0, 1, 2), (0, 4, 2))), ((0, 1, 4, 5), (2, 3, 6, 7))),
        (instruction(mesh_groups=mesh_groups({"a": 8}, (0, 1, 2), (0, 2, 2))), ALONG_FSDP),
        (instruction(mesh_groups=mesh_groups({"a": 8}, (0, 1, 2))), ((0, 4), (1, 5), (2, 6), (3, 7))),
        (
            instruction(replica_groups=[CollectiveDevices["ReplicaGroup"](replica_ids=each) for each in ALONG_TP]),
            ALONG_TP,
        ),
        (
            instruction(
                device_list=CollectiveDevices["DeviceList"](
                    replica_groups=[CollectiveDevices["ReplicaGroup"](replica_ids=(0, 1))]
                )
            ),
            ((0, 1),),
        ),
        (
            instruction(device_list=CollectiveDevices["DeviceList"](iota_groups=iota(2, 4, (4, 2), (1, 0)))),
            ALONG_FSDP,
        ),
        (
            instruction(
                source_target_pairs=[CollectiveDevices["SourceTarget"](source=a, target=b) for a, b in ((0, 2), (2, 0))]
            ),
            ((0, 2), (2, 0)),
        ),
        (instruction(), ()),
    ],
)
def test_groups_are_read_however_xla_writes_them(message: Any, groups: Any) -> None:
    assert device_groups(message) == groups


@pytest.mark.parametrize(
    "message",
    [
        instruction(iota_groups=iota(2, 3, (4, 2), (1, 0))),
        instruction(iota_groups=iota(2, 4, (4, 2), (1, 1))),
        instruction(iota_groups=iota(2, 4, (4, -2), (1, 0))),
        instruction(iota_groups=iota(1, 1 << 40, (1 << 40,), (0,))),
        instruction(iota_groups=iota(1, (1 << 20) + 1, ((1 << 20) + 1,), (0,))),  # more than any mesh has
        instruction(mesh_groups=mesh_groups(AXES, 2)),
        instruction(mesh_groups=mesh_groups(AXES, 1, device_ids=(0, 1))),
        instruction(mesh_groups=mesh_groups(AXES, 1, iota_ids=((4,), (0,)))),
        instruction(mesh_groups=mesh_groups({"a": 8}, (0, 3, 2))),
        instruction(mesh_groups=mesh_groups({"a": 8}, (0, 0, 2))),
    ],
)
def test_impossible_groups_are_damage(message: Any) -> None:
    with pytest.raises(InternalError, match="a collective has impossible device groups"):
        device_groups(message)
    message.mesh_groups = b"\xff"
    message.iota_groups = b""
    with pytest.raises(InternalError, match="a collective has impossible device groups"):
        device_groups(message)


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        (ALONG_FSDP, ("fsdp",)),
        (ALONG_TP, ("tp",)),
        (tuple(tuple(reversed(group)) for group in reversed(ALONG_TP)), ("tp",)),
        (ALL, ("fsdp", "tp")),
        ((), ("fsdp", "tp")),  # XLA leaves out the list of all
        (tuple((number,) for number in range(8)), ()),
        (HALF_OF_FSDP, ("fsdp",)),
        (((0, 3), (1, 2), (4, 7), (5, 6)), ("fsdp", "tp")),  # across both axes, but not all of them
        (((0, 2, 4), (6,), (1, 3, 5), (7,)), None),  # each has another number of them
        (ALONG_TP[:3], None),  # some devices are in none
        (((0, 1, 2), (3, 4, 5, 6, 7)), None),
        (((0, 8),), None),
    ],
)
def test_groups_are_the_axes_along_which_their_devices_lie(groups: Any, axes: tuple[str, ...] | None) -> None:
    assert axes_of_groups(groups, AXES) == axes


def test_groups_of_a_part_of_an_axis_say_how_many_of_it() -> None:
    assert part_of_axes(HALF_OF_FSDP, AXES, ["fsdp"]) == 2
    assert part_of_axes(((0, 3), (1, 2), (4, 7), (5, 6)), AXES, ["fsdp", "tp"]) == 2
    assert [part_of_axes(groups, AXES, ["fsdp", "tp"]) for groups in (ALL, ())] == [None, None]
    assert part_of_axes(ALONG_FSDP, AXES, ["fsdp"]) is None


def test_pairs_are_the_axes_along_which_they_go() -> None:
    ring = tuple((number, (number + 2) % 8) for number in range(8))
    assert axes_of_pairs(ring, AXES) == ("fsdp",)
    assert axes_of_pairs(((0, 1), (3, 3)), AXES) == ("tp",)
    assert axes_of_pairs(((0, 7),), AXES) == ("fsdp", "tp")
    assert axes_of_pairs(((0, 8),), AXES) is None


def traffic(step: Step, axes: dict[str, int] = AXES) -> tuple[CollectiveTraffic, ...]:
    capture = step.capture()
    target = replace(capture.target, topology=Topology(num_devices=8, axes=axes))
    return analyze(replace(capture, target=target)).collectives


def found(
    kind: str,
    *axes: str,
    count: int = 1,
    size_bytes: int,
    param_bytes: int = 0,
    at_least: bool = False,
    group_size: int | None = None,
) -> CollectiveTraffic:
    return CollectiveTraffic(
        kind=kind,
        axes=axes,
        count=count,
        size_bytes=size_bytes,
        param_bytes=param_bytes,
        at_least=at_least,
        group_size=group_size,
    )


def test_the_payload_is_the_whole_array_on_one_device() -> None:
    step = Step()
    w, x = step.argument("params['w']", Role.PARAMS, V), step.argument("x", Role.BATCH, V)
    # of 16 bytes on each of 4 devices a gather makes 64, here and in the background
    whole = step.op("whole", "all-gather", f32(16), [w], FORWARD, groups=ALONG_FSDP)
    start = step.op("start", "all-gather-start", tuple_of(V, f32(16)), [w], FORWARD, holds=(1,), groups=ALONG_FSDP)
    done = step.op("done", "all-gather-done", f32(16), [start], FORWARD)
    y = step.op("y", "dot", f32(16), [whole, done, x], FORWARD)
    # 64 bytes are added up, of which each of 4 devices keeps 16
    part = step.op("part", "reduce-scatter", V, [y], BACKWARD, groups=ALONG_FSDP)
    total = step.op("sum", "all-reduce", V, [part], BACKWARD, groups=ALONG_TP)
    norm = step.op("norm", "all-reduce", V, [total], BACKWARD)
    cast = step.op("cast", "convert", array("bf16", 4), [norm], BACKWARD)  # 4 elements of 2 bytes
    sent = step.op("sent", "collective-permute", array("bf16", 4), [cast], BACKWARD, groups=((0, 2), (2, 4)))
    alone = step.op(
        "alone", "all-reduce", array("bf16", 4), [sent], BACKWARD, groups=tuple((number,) for number in range(8))
    )
    half = step.op("half", "all-reduce", V, [alone], BACKWARD, groups=HALF_OF_FSDP)
    odd = step.op("odd", "all-reduce", V, [half], BACKWARD, groups=((0, 2, 4), (6,), (1, 3, 5), (7,)))
    step.result(odd)
    assert traffic(step) == (
        found("all-gather", "fsdp", count=2, size_bytes=128, param_bytes=128),
        found("reduce-scatter", "fsdp", size_bytes=64),
        found("all-reduce", size_bytes=16),  # of some devices more than of others
        found("all-reduce", "fsdp", "tp", size_bytes=16),
        found("all-reduce", "tp", size_bytes=16),
        found("all-reduce", "fsdp", group_size=2, size_bytes=8),  # of bf16, among half of the devices along an axis
        found("collective-permute", "fsdp", size_bytes=8),
    )


def _loop(step: Step, name: str, x: Node, *, turns: int, inside: Computation | None = None) -> Node:
    body, condition = step.computation(f"{name}.body"), step.computation(f"{name}.condition")
    carried = body.parameter(tuple_of(V))
    wrapped = step.computation(f"{name}.wrapped")
    wrapped.op(f"{name}.sum", "all-reduce", V, [wrapped.parameter(V)], FORWARD, groups=ALONG_FSDP)
    element = body.element(carried, 0)
    start = body.op(
        f"{name}.start", "async-start", tuple_of(tuple_of(V), V), [element], FORWARD, called=[wrapped], holds=(1,)
    )
    body.tuple(body.op(f"{name}.done", "async-done", V, [start], FORWARD))
    condition.op(f"{name}.go_on", "compare", array("pred"), [condition.parameter(tuple_of(V))])
    caller = inside or step
    loop = caller.op(name, "while", tuple_of(V), [caller.tuple(x)], called=[body, condition], number=turns)
    return caller.element(loop, 0)


def test_what_is_in_a_loop_counts_as_often_as_it_runs() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    step.result(_loop(step, "loop", x, turns=12))
    assert traffic(step) == (found("all-reduce", "fsdp", count=12, size_bytes=12 * 16),)


def test_a_loop_of_unknown_length_is_counted_once_and_said_so() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    step.result(_loop(step, "loop", x, turns=0))
    assert traffic(step) == (found("all-reduce", "fsdp", size_bytes=16, at_least=True),)


def test_of_several_operands_all_are_sent_but_places_are_not() -> None:
    """A ragged exchange has its data, its result's memory and four lists of places; a combined sum has data alone."""
    step = Step()
    x, y = step.argument("x", Role.BATCH, V), step.argument("y", Role.BATCH, f32(8))
    places = [step.argument(f"places{number}", Role.BATCH, array("s32", 4)) for number in range(4)]
    moved = step.op("moved", "ragged-all-to-all", f32(8), [x, y, *places], FORWARD, groups=ALONG_FSDP)
    both = step.op("both", "all-reduce", tuple_of(V, f32(8)), [x, moved], FORWARD, groups=ALONG_TP)
    step.result(step.element(both, 0), step.element(both, 1))
    assert traffic(step) == (
        found("all-reduce", "tp", size_bytes=16 + 32),
        found("ragged-all-to-all", "fsdp", size_bytes=16),
    )


def test_one_device_sends_nothing() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    step.result(step.op("sum", "all-reduce", V, [x], FORWARD))
    assert analyze(step.capture()).collectives == ()


def test_messages_of_the_partitioner_name_the_operation_that_they_are_about() -> None:
    step = Step()
    x = step.argument("params['layer_0']['w']", Role.PARAMS, V)
    frame = step.frame("/home/me/model.py", 7)
    step.result(step.op("y", "add", V, [x, x], "jit(step)/layer_0/add", frame=frame))
    full = (
        "Involuntary full rematerialization. The compiler {verb} go from sharding {{devices=[2,1]<=[2]}} to"
        " {{replicated}} {how} for HLO operation{colon} %add.2 = f32[8,4]{{1,0}} add(%a, %b), sharding={{}},"
        ' metadata={{op_name="{op}" stack_frame_id=1}}. As the last resort, ...'
    )
    known = full.format(verb="cannot", how="efficiently", colon="", op="jit(step)/layer_0/add")
    older = full.format(verb="was not able to", how="without doing it", colon=":", op="jit(step)/gone/add")
    capture = replace(step.capture(), partitioner_messages=(known, known, older, "Something else. " + "x" * 1000))
    first, second, third = analyze(capture).partitioner_notes
    text = "XLA materializes a whole array on each device to change sharding from {devices=[2,1]<=[2]} to {replicated}"
    assert first == PartitionerNote(
        text=f"{text} (involuntary full rematerialization)",
        op="jit(step)/layer_0/add",
        shape="f32[8,4]",
        module="layer_0",
        source="/home/me/model.py:7",
    )
    assert (second.text, second.op, second.source) == (first.text, "jit(step)/gone/add", "")
    assert (third.text[:15], len(third.text), third.op) == ("Something else.", 500, "")


JOINED = "jit(step)/(jvp(Net)/a/dot_general:transpose(jvp(Net))/b/dot_general)"


@pytest.mark.parametrize(
    ("opcode", "shape"),
    [
        ("all-gather", tuple_of(V, f32(2))),
        ("all-gather-start", tuple_of(tuple_of(f32(1), f32(1)), tuple_of(V, f32(2)))),
    ],
)
def test_of_combined_collectives_each_result_belongs_to_its_own_operand(opcode: str, shape: Any) -> None:
    step = Step()
    frame = step.frame("model.py", 7)
    w = step.argument("params['a']['w']", Role.PARAMS, V)
    w.op_name = "params['a']['w']"  # as JAX names it
    m = step.argument("m", Role.OPTIMIZER_STATE, f32(2))
    x = step.argument("x", Role.BATCH, f32(2))
    dx = step.op(
        "dx", "multiply", f32(2), [x, x], "jit(step)/transpose(jvp(Net))/b/mul", frame=step.frame("model.py", 9)
    )
    both = step.op("both", opcode, shape, [w, dx], JOINED, frame=frame, groups=ALONG_FSDP)
    if opcode.endswith("start"):
        both = step.op("done", "all-gather-done", shape.elements[1], [both], JOINED, frame=frame)
    whole, sent = step.element(both, 0), step.element(both, 1)
    y = step.op("y", "multiply", V, [whole, x], "jit(step)/jvp(Net)/a/mul")
    step.result(step.op("new_m", "add", V, [m, sent, y], "jit(step)/add"))
    of = {name: value for name, value in values(step).items() if name.startswith("both")}
    names = ("both{0}", "both{1}") if opcode == "all-gather" else ("both{1,0}", "both{1,1}")
    first, second = of[names[0]], of[names[1]]
    assert (first.op_name, first.module, first.phase) == ("params['a']['w']", "a", Phase.FORWARD)
    assert (second.op_name, second.phase) == ("jit(step)/transpose(jvp(Net))/b/mul", Phase.BACKWARD)
    assert second.module == "b"


def test_of_combined_collectives_the_part_that_is_parameters_is_known() -> None:
    step = Step()
    w, x = step.argument("params['w']", Role.PARAMS, V), step.argument("x", Role.BATCH, f32(2))
    both = step.op("both", "all-gather", tuple_of(f32(16), f32(8)), [w, x], FORWARD, groups=ALONG_FSDP)
    step.result(step.op("y", "dot", f32(2), [step.element(both, 0), step.element(both, 1)], FORWARD))
    assert traffic(step) == (found("all-gather", "fsdp", size_bytes=64 + 32, param_bytes=64),)
