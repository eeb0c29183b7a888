"""A hand-made report in which every field says something: a step on a mesh of eight devices, pressed, padded, measured.

Four layers and a head, five levels deep. Sizes are powers of two, so that sums are read off.
"""

from __future__ import annotations

from dataclasses import replace

from measurements import GPU_RUN, MESH_RUN, OP_COSTS
from report_builder import H100, buffer, node, report

from memprof.analysis.records.capture import ArgumentLeaf, Timings, Topology
from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.layout_copy import LayoutCopy, Neighbour
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.pressure import Pressure
from memprof.analysis.records.report import CollectiveTraffic, ModuleNode, PartitionerNote, Report
from memprof.analysis.records.roofline import Roofline

MESH = replace(
    H100,
    topology=Topology(num_devices=8, num_hosts=2, axes={"fsdp": 4, "tp": 2, "one": 1}),
    reserved_bytes=2**30,
    chip_bytes={"vmem": 2**20, "smem": 2**16},
)
_RUN = replace(
    MESH_RUN,
    devices=tuple(replace(each, argument_bytes=512 + each.process) for each in MESH_RUN.devices),
    pool=replace(GPU_RUN.pool, pool_bytes=2**22) if GPU_RUN.pool else None,
)


def full_report(label: str = "net bf16+scan", *, scale: int = 1) -> Report:
    """See above. `scale` is the length of the first dimension of what a layer makes."""
    layers = [_layer(number, scale) for number in range(4)]
    head = [buffer((256,), "f32", Category.GRADIENTS, module="head", op="jit(step)/transpose(jvp(Net))/head/dot")]
    rest = [
        buffer((4096,), "f32", Category.OPTIMIZER_STATE, op="opt['mu']", phase=Phase.ARGUMENT),
        buffer((64,), "s32", Category.BATCH, op="batch", phase=Phase.ARGUMENT),
        buffer((1000,), "u8", Category.WORKSPACE, op="jit(step)/jvp(Net)/custom_call", source="/home/me/net/net.py:9"),
        buffer((10,), "f32", Category.UNATTRIBUTED),
    ]
    buffers = [*(each for layer in layers for each in layer), *head, *rest]
    made = report(
        buffers,
        fragmentation=2048,
        target=MESH,
        label=label,
        num_params=12_345,
        modules=_modules(layers, head, rest),
        arguments=_arguments(),
    )
    return replace(
        made,
        recomputed_flops=5 * 10**9,
        refusal="too large by 3 bytes.",
        memory_spaces={"hbm": made.footprint_bytes, "vmem": 2**18, "host": 2**21},
        pressure=Pressure(
            planned_bytes=2**20, recomputed_values=7, recomputed_flops=10**9, footprint_without_limit_bytes=2**19
        ),
        without_limit=replace(made, label=f"{label} without"),
        parameter_bytes={0: 1024, 1: 16384, 2: 256, 3: 96},
        collectives=(
            CollectiveTraffic(
                kind="all-gather", axes=("fsdp",), count=1234, size_bytes=2**21, param_bytes=2**20, at_least=True
            ),
            CollectiveTraffic(
                kind="all-reduce",
                axes=("fsdp", "tp"),
                count=2,
                size_bytes=2**11,
                param_bytes=0,
                at_least=False,
                group_size=4,
            ),
            CollectiveTraffic(kind="all-to-all", axes=(), count=1, size_bytes=2**10, param_bytes=2**10, at_least=False),
        ),
        partitioner_notes=(
            PartitionerNote(
                text="a full copy is made", op="dot", shape="f32[8]", module="head", source="/home/me/net/net.py:3"
            ),
            PartitionerNote(text="a halo is too large", op="", shape="", module="", source=""),
        ),
        layout_copies=tuple(_layout_copy(number) for number in range(4)),
        compiler=replace(made.compiler, optimal_seconds=0.02),
        doubts=("'opt' may be something else",),
        measured=_RUN,
        op_costs=(*OP_COSTS, replace(OP_COSTS[1], name="fusion.4", seconds=0.01, num_calls=2)),
        roofline=Roofline(
            at_least_seconds=0.0125, compute_share=0.5, memory_share=0.496, communication_share=0.004, priced_share=0.96
        ),
        timings=Timings(lower_seconds=0.84, compile_seconds=0.0, cached_compile_seconds=7.31),
        toolchain=replace(
            made.toolchain, xla_flags="--xla_a=1 --xla_b=2", jax_settings={"jax_enable_x64": "True"}, torch="2.9"
        ),
        forward_flops={"head": 3},
        program=replace(made.program, host_bytes=2**21, num_recomputed_operations=3),
    )


def _layout_copy(number: int) -> LayoutCopy:
    path = f"jit(step)/jvp(Net)/layers_{number}"
    return LayoutCopy(
        name=f"copy.{number}",
        kind="copy",
        dtype="f32",
        old_dtype="f32",
        shape=(100, 130),
        layout="{0,1:T(8,128)}",
        old_shape=(100, 130),
        old_layout="{1,0:T(8,128)}",
        size_bytes=69_632,
        space="hbm" if number else "vmem",
        num_runs=3,
        is_at_least=number == 3,
        is_at_peak=number == 1,
        op="",
        module=f"layers_{number}/attn",
        source="",
        producer=Neighbour(name="fusion", op=f"{path}/attn/dot", source="/home/me/net/layers.py:12", role="operation"),
        consumer=Neighbour(name="", op="", source="", role="result"),
    )


def _layer(number: int, scale: int) -> list[LiveBuffer]:
    path = f"layers_{number}"
    weight = buffer((8, 8), "f32", Category.PARAMS, module=f"{path}/mlp/up", op="params['w']", phase=Phase.ARGUMENT)
    source = "/home/me/net/layers.py"
    made = buffer(
        (scale * 4, 24),
        "bf16",
        Category.ACTIVATIONS,
        module=f"{path}/attn",
        op=f"jit(step)/jvp(Net)/{path}/attn/dot",
        source=f"{source}:12",
    )
    mask = buffer((3,), "f32", Category.FORWARD_TEMPS, module=f"{path}/attn", op=f"jit(step)/jvp(Net)/{path}/attn/lt")
    return [
        weight,
        replace(made, size_bytes=scale * 1024, padding_bytes=scale * 832, padded=(scale * 4, 128), library="nn.py:5"),
        replace(made, op=made.op.replace("dot", "add"), library="nn.py:7", offset=scale * 1024),
        replace(mask, source=f"{source}:{13 + number}", size_bytes=128, padding_bytes=116),
    ]


def _modules(layers: list[list[LiveBuffer]], head: list[LiveBuffer], rest: list[LiveBuffer]) -> ModuleNode:
    children = []
    for number, (weight, *others) in enumerate(layers):
        path = f"layers_{number}"
        up = node(f"{path}/mlp/up", [weight], params=(("kernel", (8, 8), "f32"),))
        mlp = replace(node(f"{path}/mlp", [], children=(up,)), forward_flops=200)
        attn = replace(node(f"{path}/attn", others), forward_flops=100)
        children.append(replace(node(path, [], children=(attn, mlp)), forward_flops=310))
    bias = ("bias", (256,), "f32")
    children.append(replace(node("head", head, params=(bias,)), forward_flops=3))
    return replace(node("", rest, children=tuple(children), fragmentation=2048, num_params=12_345), forward_flops=1300)


def _arguments() -> tuple[ArgumentLeaf, ...]:
    leaf = ArgumentLeaf(
        path="params['w']",
        role=Role.PARAMS,
        shape=(4, 8, 8),
        dtype="float32",
        size_bytes=1024,
        donated=True,
        parameter_number=0,
        position=0,
        mesh_axes=(),
    )
    state = replace(leaf, path="opt['mu']", role=Role.OPTIMIZER_STATE, shape=(32768,), size_bytes=131072)
    return (
        leaf,  # whole on each device
        replace(state, parameter_number=1, position=1, mesh_axes=("fsdp", "tp")),  # an eighth
        replace(
            leaf, path="batch", role=Role.BATCH, shape=(256,), parameter_number=2, mesh_axes=("fsdp",)
        ),  # a quarter
        replace(
            leaf, path="key", role=Role.OTHER_STATE, shape=(40,), size_bytes=160, parameter_number=3, mesh_axes=None
        ),
        replace(leaf, path="step", role=Role.OTHER_STATE, shape=(), size_bytes=4, parameter_number=4, donated=False),
        replace(leaf, path="unused", role=Role.BATCH, parameter_number=None),
    )
