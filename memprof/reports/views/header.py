"""The head of a report: the step, the target, the toolchain, and whether the step fits."""

from __future__ import annotations

import math
from fractions import Fraction

from memprof.analysis.memory.verdict import amount_in_words, outside_pool
from memprof.analysis.records.capture import CompilerTotals, Target, Toolchain
from memprof.analysis.records.categories import Category
from memprof.analysis.records.device_family import HBM
from memprof.analysis.records.engine import EngineFigures
from memprof.analysis.records.kernel import is_about_chip
from memprof.analysis.records.pool import Answer
from memprof.analysis.records.pressure import Pressure
from memprof.analysis.records.report import AllocatorFigures, Report
from memprof.reports.document import Block, Fact, Facts, Gauge, Heading, Note, Part, Tone
from memprof.reports.units import (
    format_bytes,
    format_count,
    format_flops,
    format_seconds,
    format_share,
    format_short_seconds,
)
from memprof.reports.views.cells import exact_size, facts_of
from memprof.reports.views.kernels import over_limit_sentence
from memprof.reports.views.layout_copies import layout_copy_facts
from memprof.reports.views.padding import padding_facts

TONES = {
    Answer.FITS: Tone.GOOD,
    Answer.FITS_WITH: Tone.WARNING,
    Answer.DOES_NOT_FIT: Tone.BAD,
    Answer.UNKNOWN: Tone.MUTED,
}


_TIME = "time"
_MIN_SHOWN_SHARE = 0.005  # a smaller share would read 0%


def title(report: Report) -> Heading:
    """Build the title: the label of the configuration."""
    return Heading(text=report.label, level=1, aside="memprof")


def subject_heading(report: Report) -> Heading:
    """Build a title that distinguishes captures: the label, the preset of the workload and the devices."""
    topology, target = report.target.topology, report.target
    devices = target.name if topology.num_devices == 1 else f"each of {topology.num_devices} {target.name}"
    preset = report.config.get("preset")
    return Heading(text=report.label, level=1, aside=", ".join([*([str(preset)] if preset else []), f"on {devices}"]))


def subject_facts(report: Report) -> Facts:
    """List the techniques and the target, which every view of a capture shows."""
    return facts_of({"techniques": report.techniques, "target": target_values(report.target)})


def setup_facts(report: Report) -> Facts:
    """List the facts about the step, the target and the toolchain."""
    return facts_of(
        {
            "workload": (report.workload,),
            "techniques": report.techniques,
            "model": _model(report),
            _TIME: time_values(report),
            "target": (*target_values(report.target), report.target.reason),
            "toolchain": toolchain_values(report.toolchain),
            "xla flags": report.toolchain.xla_flags.split(),
            "jax settings": report.toolchain.settings,
            "took": _took(report),
        }
    )


def time_facts(report: Report) -> tuple[Facts, ...]:
    """List the bound on the step time by itself, if there is one."""
    values = time_values(report)
    return (facts_of({_TIME: values}),) if values else ()


def time_values(report: Report) -> tuple[str, ...]:
    """Describe the roofline bound with its limits, and the compiler's estimate; empty if there is neither."""
    bound, estimate = report.roofline, report.compiler.optimal_seconds
    estimates = () if estimate is None else (f"XLA estimates {format_short_seconds(estimate)}",)
    if bound is None:
        return estimates
    shares = {
        "compute": bound.compute_share,
        "memory": bound.memory_share,
        "communication": bound.communication_share,
    }
    limits = ", ".join(f"{share:.0%} {name}" for name, share in shares.items() if share >= _MIN_SHOWN_SHARE)
    return (f"at least {format_short_seconds(bound.at_least_seconds)}: roofline, not measured ({limits})", *estimates)


def configuration(report: Report) -> tuple[Block, ...]:
    """List all fields of the workload's configuration, in a section because the head has no room for them."""
    if not report.config:
        return ()
    values = tuple(f"{name}={value}" for name, value in report.config.items())
    return (Heading(text="Configuration", level=2), facts_of({"config": values}))


def gauge(report: Report) -> Gauge:
    """Compare the footprint, by category, with JAX's memory pool."""
    verdict = report.verdict
    return Gauge(
        parts=footprint_parts(report),
        capacity_bytes=verdict.pool_bytes,
        verdict=verdict.sentence,
        tone=TONES[verdict.answer],
    )


def refusal_notes(report: Report) -> tuple[Note, ...]:
    """Quote the compiler's reason, if it rejected the program."""
    if not report.refusal:
        return ()
    own = f"The footprint here is {report.footprint_bytes / 2**30:.2f} GiB; its parts are below."
    if is_about_chip(report.refusal):
        own = over_limit_sentence(report.kernels) or "It concerns memory on the chip, not the footprint."
    return (Note(tone=Tone.BAD, text=f"The compiler rejected the program: {report.refusal.rstrip('.')}. {own}"),)


def pressure_notes(*reports: Report) -> tuple[Note, ...]:
    """Describe the values that XLA itself recomputes: one sentence for each affected report, labelled if several."""
    return tuple(
        Note(
            text=f"{f'{report.label}: ' if len(reports) > 1 else ''}{pressure_sentence(report.pressure)}.",
            tone=Tone.WARNING,
        )
        for report in reports
        if report.pressure is not None
    )


def pressure_sentence(pressure: Pressure) -> str:
    """Describe the values that XLA itself recomputes, and the memory that it would need otherwise."""
    values = "1 value" if pressure.recomputed_values == 1 else f"{pressure.recomputed_values:,} values"
    work = format_flops(pressure.recomputed_flops) if pressure.recomputed_flops else "no matrix products"
    limit = "its limit of memory"
    if pressure.planned_bytes is not None:
        limit = f"{format_bytes(pressure.planned_bytes)}, {pressure.planned_for}"
        if (pressure.footprint_without_limit_bytes or math.inf) <= pressure.planned_bytes:
            limit += ", by its own estimate"
    without = "the footprint without that limit is unknown, because the program was not compiled without it"
    if pressure.footprint_without_limit_bytes is not None:
        without = f"without that limit it would need {format_bytes(pressure.footprint_without_limit_bytes)}"
    return f"XLA recomputes {values} ({work}) to get under {limit}; {without}"


def outside_facts(report: Report) -> tuple[Fact, ...]:
    """List the users of device memory outside of the pool, each figure with its source."""
    return tuple(
        Fact(
            label="outside the pool" if not number else "",
            values=(
                f"{each.name}: {'unknown' if each.size_bytes is None else f'about {format_bytes(each.size_bytes)}'}",
                each.source,
            ),
        )
        for number, each in enumerate(outside_pool(report.target))
    )


def footprint_parts(report: Report) -> tuple[Part, ...]:
    """Return the footprint as a stack, in the order of the categories."""
    return tuple(
        Part(category=category, size_bytes=report.categories[category])
        for category in Category
        if report.categories[category]
    )


def memory_heading(report: Report) -> Heading:
    """Build the heading of the memory section. All numbers of a report are for one device."""
    num_devices = report.target.topology.num_devices
    return Heading(text="Memory" if num_devices == 1 else f"Memory of each of {num_devices} devices", level=2)


def memory_facts(report: Report) -> Facts:
    """List the two totals, their difference, and the numbers of the compiler or of PyTorch's allocator."""
    fragmentation = report.categories[Category.FRAGMENTATION]
    return Facts(
        facts=(
            Fact(label="footprint", values=exact_size(report.footprint_bytes)),
            Fact(label="live peak", values=exact_size(report.live_peak_bytes)),
            Fact(
                label="fragmentation",
                values=(
                    format_bytes(fragmentation),
                    f"{format_share(fragmentation, report.footprint_bytes)} of the footprint",
                ),
            ),
            *padding_facts(report),
            *layout_copy_facts(report),
            *memory_space_facts(report),
            *_figure_facts(report),
            *outside_facts(report),
        )
    )


def memory_space_facts(report: Report) -> tuple[Fact, ...]:
    """List the memory on the chip and on the host, which the footprint excludes, and name the fullest memory."""
    others = {name: size for name, size in report.memory_spaces.items() if name != HBM}
    if not others:
        return ()
    capacities = {HBM: report.target.usable_bytes, **report.target.chip_bytes}
    shares = {
        name: Fraction(size, capacity)
        for name, size in report.memory_spaces.items()
        if (capacity := capacities.get(name))
    }
    fullest = max(shares, key=lambda name: shares[name], default=None)
    values = tuple(
        f"{name} {format_bytes(size)}" + (f" of {format_bytes(capacity)}" if (capacity := capacities.get(name)) else "")
        for name, size in others.items()
    )
    last = () if fullest is None or len(shares) < 2 else (f"{fullest} is fullest, {float(shares[fullest]):.0%}",)
    return (Fact(label="beside it", values=(*values, *last)),)


def _compiler_fact(compiler: CompilerTotals) -> Fact:
    totals = {
        "arguments": compiler.argument_bytes,
        "outputs": compiler.output_bytes,
        "aliased": compiler.alias_bytes,
        "temp block": compiler.temp_bytes,
        "peak": compiler.peak_memory_bytes,
    }
    return Fact(
        label="compiler says" if compiler.is_complete else "XLA's plan",
        values=tuple(f"{name} {_or_not_given(size_bytes)}" for name, size_bytes in totals.items()),
    )


def _figure_facts(report: Report) -> tuple[Fact, ...]:
    """List the totals of the memory planner (XLA, TensorRT or PyTorch's allocator), under its own names."""
    if report.engine_figures is not None:
        return _engine_facts(report.engine_figures)
    return (_compiler_fact(report.compiler) if report.allocator is None else _allocator_fact(report.allocator),)


def _engine_facts(engine: EngineFigures) -> tuple[Fact, ...]:
    at = " at the profile's maximum" if engine.is_dynamic else ""
    return (
        Fact(
            label="builder says",
            values=(
                f"weights {format_bytes(engine.weights_bytes)}",
                f"activation memory {format_bytes(engine.activation_bytes)}{at}",
                f"of which scratch {format_bytes(engine.scratch_bytes)}",
                f"persistent {format_bytes(engine.persistent_bytes)}",
            ),
        ),
        Fact(
            label="network",
            values=(f"inputs {format_bytes(engine.input_bytes)}", f"outputs {format_bytes(engine.output_bytes)}"),
        ),
        Fact(
            label="inferred",
            values=(f"tensors between layers, replayed in their order: {format_bytes(engine.replayed_bytes)}",),
        ),
    )


def _allocator_fact(allocator: AllocatorFigures) -> Fact:
    return Fact(
        label="caching allocator",
        values=(
            f"tensors {format_bytes(allocator.requested_bytes)}",
            f"allocated {_or_not_given(allocator.allocated_bytes)}",
            f"reserved {format_bytes(allocator.reserved_bytes)}",
        ),
    )


def target_values(target: Target) -> tuple[str, ...]:
    """Describe the device."""
    memory = amount_in_words(target) if target.memory_bytes is None else format_bytes(target.memory_bytes)
    capability = () if target.compute_capability is None else (f"compute capability {target.compute_capability}",)
    num_devices = target.topology.num_devices
    name = target.name if num_devices == 1 else f"{num_devices} x {target.name}"
    return (name, target.description, memory, *capability)


def toolchain_values(tools: Toolchain) -> tuple[str, ...]:
    """List the versions of the installed tools."""
    versions = {
        "tensorrt": tools.tensorrt,
        "torch": tools.torch,
        "jax": tools.jax,
        "jaxlib": tools.jaxlib,
        "flax": tools.flax,
        "optax": tools.optax,
        "python": tools.python,
        "memprof": tools.memprof,
    }
    named = (f"{name} {version}" for name, version in versions.items() if version)
    # These texts already include the names of the compilers.
    return (*named, *filter(None, (tools.cuda_plugin, tools.libtpu)))


def _model(report: Report) -> tuple[str, ...]:
    recomputed = report.recomputed_flops
    num_devices = report.target.topology.num_devices
    on_all = on_each = ""
    if num_devices > 1:
        on_all = f" on all {num_devices} devices together"
        on_each = f", {format_flops(round(report.flops / num_devices))} on each if all of it is divided"
    if not report.flops:  # FLOPs are counted in a trace, and an imported program was traced elsewhere
        return (f"{format_count(report.num_params)} parameters",)
    return (
        f"{format_count(report.num_params)} parameters",
        f"{format_flops(report.flops)} a step{on_all}{on_each} (counted in the traced program)",
        *((f"of which recomputed {format_flops(recomputed)}",) if recomputed else ()),
    )


def _took(report: Report) -> tuple[str, ...]:
    timings = report.timings
    if report.framework == "torch":
        analysis = f"analysis {format_seconds(report.analysis_seconds)}"
        is_traced = timings.lower_seconds > 0  # a snapshot was recorded elsewhere
        return (f"tracing {format_seconds(timings.lower_seconds)}", analysis) if is_traced else (analysis,)
    if report.engine_figures is not None:
        return (f"building the engine {format_seconds(timings.compile_seconds)}",)
    compiling, from_cache = f"compiling {format_seconds(timings.compile_seconds)}", timings.cached_compile_seconds
    if from_cache is not None:
        compiling = f"plan from the cache (compiled in {format_seconds(from_cache)})"
    analysing = f"analysis {format_seconds(report.analysis_seconds)}"
    if not timings.lower_seconds:  # the program was compiled elsewhere
        return (analysing,)
    return (f"lowering {format_seconds(timings.lower_seconds)}", compiling, analysing)


def _or_not_given(size_bytes: int | None) -> str:
    return "not given" if size_bytes is None else format_bytes(size_bytes)
