"""Every built-in preset on three GPUs and the CPU: the numbers add up, and they are the compiler's."""

from __future__ import annotations

import pytest
from integration.steps import GPUS, TARGETS, Step

from memprof.analysis.hlo.hlo_proto import parse_proto
from memprof.analysis.records.categories import Category
from memprof.workloads import registry
from memprof.workloads.workload import Workload

# The large presets take long: each is compiled for one GPU, which others are small on, and for the CPU. Unrolled layers
# are most of it, and one is like the other: so they have two. Some have so many examples that XLA recomputes to have
# them fit.
GPU_OF = {
    "gpt2": "h100-80gb",
    "bert-large": "a100-40gb",
    "uva": "l4",
    "moe": "h100-80gb",
    "tiny-moe": "l4",
    "llama-1b": "a100-40gb",
    "llama-8b": "h100-80gb",
    "llama-70b": "h100-80gb",
    "gemma-2b": "h100-80gb",
}
TWO_LAYERS = ("num_layers=2",)
# A loop goes through the layers of these, so their programs are those of the tiny presets with other numbers.
TINY_ALONE = ("decoder",)
MANY_EXAMPLES = {("uva", "l4"): ("batch_size=256",)}
RECOMPUTED = {"uva", "moe", "gemma-2b", "llama-1b", "llama-8b", "llama-70b"}  # larger than JAX's pool
# With each JAX, the small presets are compiled for the CPU and one GPU, and of the others these: what an older one does
# otherwise shows there.
WITH_EACH_JAX = {"gpt2", "tiny-moe"}


def has_each_jax(preset: str, target: str) -> bool:
    """Whether a step is compiled with each JAX."""
    return preset in WITH_EACH_JAX if preset in GPU_OF else target in ("h100-80gb", "cpu")


def marks_of(preset: str, target: str) -> list[pytest.MarkDecorator]:
    """The marks of a step. What differs between GPUs, and the large presets but one, takes most of the time."""
    is_slow = preset != "gpt2" if preset in GPU_OF else target not in ("h100-80gb", "cpu")
    marks = [pytest.mark.with_each_jax] if has_each_jax(preset, target) else []
    return [*marks, pytest.mark.slow] if is_slow else marks


def step_of(workload: Workload, preset: str, target: str) -> Step:
    layers = TWO_LAYERS if preset in GPU_OF else ()
    overrides = (*layers, *MANY_EXAMPLES.get((preset, target), ()))
    return Step(workload=workload.name, preset=preset, target=target, overrides=overrides)


STEPS = [
    pytest.param(
        step_of(workload, preset, target),
        id=f"{workload.name}-{preset}-{target}",
        marks=marks_of(preset, target),
    )
    for workload in registry.workloads()
    for preset in workload.presets
    for target in TARGETS
    if target in (GPU_OF.get(preset, target), "cpu")
    if workload.name not in TINY_ALONE or preset.startswith("tiny")
]
ON_GPU = [step for step in STEPS if step.values[0].target in GPUS]


def constant_bytes(capture) -> int:
    """The constants of the buffer assignment that lie in device memory."""
    allocations = parse_proto(capture.hlo_proto).buffer_assignment.buffer_allocations
    return sum(each.size for each in allocations if each.is_constant and not each.is_thread_local and not each.color)


@pytest.mark.parametrize("step", STEPS)
def test_every_breakdown_adds_up_to_the_footprint(compiler, step):
    report = compiler.report(step)
    sums = {
        "categories": sum(report.categories.values()),
        "sources": sum(report.by_source.values()),
        "dtypes": sum(report.by_dtype.values()),
        "phases": sum(report.by_phase.values()),
        "modules": report.modules.size_bytes,
        "buffers": sum(buffer.size_bytes for buffer in report.buffers) + report.categories[Category.FRAGMENTATION],
    }
    assert sums == dict.fromkeys(sums, report.footprint_bytes)
    assert min(report.categories.values()) >= 0


@pytest.mark.slow
@pytest.mark.with_one_jax
def test_xla_recomputes_what_would_not_fit(compiler):
    recomputing = {
        preset
        for preset, target in GPU_OF.items()
        if b".remat" in compiler.capture(step_of(registry.workload("transformer"), preset, target)).hlo_proto
    }
    assert recomputing == RECOMPUTED


@pytest.mark.parametrize("step", ON_GPU)
def test_the_live_peak_is_the_compilers_peak(compiler, step):
    capture, report = compiler.capture(step), compiler.report(step)
    assert report.live_peak_bytes == capture.compiler.peak_memory_bytes


@pytest.mark.parametrize("step", STEPS)
def test_the_footprint_is_arguments_new_results_temp_block_and_constants(compiler, step):
    capture, report = compiler.capture(step), compiler.report(step)
    totals = capture.compiler
    new_results = totals.output_bytes - totals.alias_bytes
    assert report.footprint_bytes == (totals.argument_bytes + new_results + totals.temp_bytes + constant_bytes(capture))


@pytest.mark.parametrize("step", STEPS)
def test_the_footprint_is_all_that_the_compiler_allocates(compiler, step):
    capture, report = compiler.capture(step), compiler.report(step)
    if capture.compiler.total_allocation_bytes is None:
        assert capture.toolchain.jax.startswith("0.10.")  # the only one that does not tell
    else:
        assert report.footprint_bytes == capture.compiler.total_allocation_bytes


@pytest.mark.parametrize("step", STEPS)
def test_the_live_peak_is_the_highest_point_of_the_timeline(compiler, step):
    report = compiler.report(step)
    columns = report.timeline.slices(report.timeline.num_positions)
    assert max(column.live_bytes for column in columns) == report.live_peak_bytes
    assert report.timeline.slices(1)[0].live_bytes == report.live_peak_bytes


@pytest.mark.parametrize("step", STEPS)
def test_less_than_a_thousandth_is_unattributed(compiler, step):
    report = compiler.report(step)
    assert report.categories[Category.UNATTRIBUTED] < report.footprint_bytes / 1000


@pytest.mark.slow
def test_what_waits_on_the_host_is_no_part_of_the_live_peak(compiler):
    """Where the host holds more temporaries than the device, the compiler's peak is that of the host's."""
    step = Step(
        workload="transformer",
        preset="tiny",
        target="l4",
        overrides=("batch_size=8",),
        techniques=("remat-offload",),
    )
    capture, report = compiler.capture(step), compiler.report(step)
    assert report.live_peak_bytes < capture.compiler.peak_memory_bytes
    assert report.program.host_bytes > capture.compiler.temp_bytes
    assert sum(report.categories.values()) == report.footprint_bytes
