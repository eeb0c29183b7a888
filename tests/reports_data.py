"""The hand-made reports that all formats are tested with: from an empty program to thousands of buffers.

The sums that tests rely on are worked out in the comments, here and in `transformer_report.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from measurements import CPU_RUN, GPU_RUN, OP_COSTS, OUT_OF_MEMORY_RUN
from report_builder import CPU, buffer, node, report
from transformer_report import transformer

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.report import Report
from memprof.analysis.records.timeline import Timeline


def empty() -> Report:
    """A step that does nothing with nothing."""
    return replace(
        report(),
        timeline=Timeline(num_positions=0, base={}, changes=(), phases=(), peak_position=0),
        flops=0,
        config={},
    )


def one_buffer() -> Report:
    """A single argument: f32[256] is 1 KiB."""
    return report([buffer((256,), "f32", Category.PARAMS, op="params['w']", phase=Phase.ARGUMENT)], num_params=256)


def does_not_fit() -> Report:
    """f32[32,1024,1024,1024] is 128 GiB, on a card of 79.1 GiB."""
    return report([buffer((32, 1024, 1024, 1024), "f32", Category.ACTIVATIONS, op="jit(step)/jvp(f)/dot_general")])


def on_cpu() -> Report:
    """No fixed amount of memory, no compiler's peak; 4 bytes that no rule explains; an argument of 4 KiB dropped."""
    unused = ArgumentLeaf(
        path="batch['weights']",
        role=Role.BATCH,
        shape=(1024,),
        dtype="float32",
        size_bytes=4096,
        donated=False,
        parameter_number=None,
    )
    buffers = [buffer((64,), "f32", Category.FORWARD_TEMPS), buffer((), "u32", Category.UNATTRIBUTED)]
    return report(buffers, target=CPU, arguments=(unused,))


def zero_size() -> Report:
    """Arrays without elements take no bytes, and are still live."""
    return report([buffer((0, 8), "f32", Category.BATCH), buffer((4, 0), "bf16", Category.ACTIVATIONS)])


def hostile_names() -> Report:
    """Names that try to break the output: markup, escapes, quotes, emoji, right-to-left, wide and very long text."""
    names = [
        "[red]not red[/red]",
        "<script>alert('x')</script>",
        "\"quotes\" and 'quotes' and \\backslashes",
        "\x1b[31mescape\x1b[0m\r\nnew line\ttab",
        "🔥🚀 emoji 👩\u200d🚀",
        "שלום עולם \u202eoverride",
        "模型/层_0",
        "e\u0301 combining",
        "\ud800 lone surrogate",
        "very_long_" * 50,
    ]
    buffers = [
        buffer(
            (1024, number + 1), "f32", Category.ACTIVATIONS, module=name, op=f"jit(step)/{name}", source=f"{name}.py:1"
        )
        for number, name in enumerate(names)
    ]
    children = tuple(node(item.module, [item]) for item in buffers)
    return report(buffers, modules=node("", (), children=children), label=f"[bold]label[/bold] {names[1]}")


def many_buffers(count: int = 2_000) -> Report:
    """Many buffers, each in a module of its own under one of 100."""
    categories = [category for category in Category if category is not Category.KV_CACHE]  # no step has all
    buffers = [
        buffer(
            (index % 97 + 1, 64),
            "bf16",
            categories[index % 15],
            module=f"stage_{index % 100}/part_{index // 100}",
            op=f"jit(step)/stage_{index % 100}/part_{index // 100}/add",
            source=f"model.py:{index % 400}",
        )
        for index in range(count)
    ]
    stages = []
    for number in range(100):
        parts = tuple(node(item.module, [item]) for item in buffers[number::100])
        stages.append(node(f"stage_{number}", (), children=parts))
    return report(buffers, modules=node("", (), children=tuple(stages), fragmentation=4096), fragmentation=4096)


def measured_on_gpu() -> Report:
    """A step that ran on the card: see `measurements`."""
    return replace(one_buffer(), measured=GPU_RUN, op_costs=OP_COSTS)


def measured_on_cpu() -> Report:
    """A step that ran on the host."""
    return replace(on_cpu(), measured=CPU_RUN)


def out_of_memory() -> Report:
    """A step that does not fit, and was run all the same."""
    return replace(does_not_fit(), measured=OUT_OF_MEMORY_RUN)


REPORTS: Mapping[str, Callable[[], Report]] = {
    "empty": empty,
    "one_buffer": one_buffer,
    "does_not_fit": does_not_fit,
    "on_cpu": on_cpu,
    "zero_size": zero_size,
    "measured_on_gpu": measured_on_gpu,
    "measured_on_cpu": measured_on_cpu,
    "out_of_memory": out_of_memory,
    "hostile_names": hostile_names,
    "many_buffers": many_buffers,
    "transformer": transformer,
}
