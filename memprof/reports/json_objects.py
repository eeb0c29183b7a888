"""Reports and comparisons as JSON objects: the fields that other programs rely on, described in `docs/schema/`.

Fields may be added within a schema version, never renamed or removed. The order of keys is fixed, so that two reports
can be compared as text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from memprof.analysis.capture import ArgumentLeaf
from memprof.analysis.categories import Category
from memprof.analysis.comparison import Comparison, Effect
from memprof.analysis.diff import Diff, MatchedBuffers
from memprof.analysis.measurement import DriverMemory, Measurement, OutOfMemory, PoolMemory, ResidentMemory
from memprof.analysis.report import LiveBuffer, ModuleNode, OpCost, Report
from memprof.studies.advice.advice import Advice
from memprof.studies.advice.advise import advise

REPORT_SCHEMA = "memprof.report/1"
COMPARISON_SCHEMA = "memprof.comparison/1"
DIFF_SCHEMA = "memprof.diff/1"

# Every module has all categories, and an enum's `value` is slow.
_CATEGORY_NAMES = tuple((category, category.value) for category in Category)

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def report_object(report: Report, advice: Sequence[Advice] | None = None) -> dict[str, Json]:
    """The JSON object of one report.

    Args:
        advice: where more is known of it than the report tells.
    """
    compiler = report.compiler
    return {
        "schema": REPORT_SCHEMA,
        "label": report.label,
        "workload": report.workload,
        "techniques": list(report.techniques),
        "config": {name: _number(value) for name, value in report.config.items()},
        **_origin(report),
        "footprint_bytes": report.footprint_bytes,
        "live_peak_bytes": report.live_peak_bytes,
        "host_bytes": report.program.host_bytes,
        "fits": report.fits,
        "categories": {category.value: report.categories[category] for category in Category},
        "compiler": {
            "argument_bytes": compiler.argument_bytes,
            "output_bytes": compiler.output_bytes,
            "alias_bytes": compiler.alias_bytes,
            "temp_bytes": compiler.temp_bytes,
            "peak_memory_bytes": compiler.peak_memory_bytes,
            "total_allocation_bytes": compiler.total_allocation_bytes,
        },
        "num_params": report.num_params,
        "flops": report.flops,
        "recomputed_flops": report.recomputed_flops,
        "by_source": _largest_first(report.by_source),
        "by_dtype": _largest_first(report.by_dtype),
        "by_phase": _largest_first({phase.value: size_bytes for phase, size_bytes in report.by_phase.items()}),
        "timings": {
            "lower_seconds": report.timings.lower_seconds,
            "compile_seconds": report.timings.compile_seconds,
            "analysis_seconds": report.analysis_seconds,
        },
        "modules": [_module(node) for node in _walk(report.modules)],
        "buffers": [buffer_object(buffer) for buffer in report.buffers],
        "unused_arguments": [_argument(leaf) for leaf in report.unused_arguments],
        "doubts": list(report.doubts),
        "measured": None if report.measured is None else _measured(report, report.measured),
        "advice": [advice_object(each) for each in (advise(report) if advice is None else advice)],
    }


def comparison_object(comparison: Comparison) -> dict[str, Json]:
    """The JSON object of a comparison, with the whole object of each report."""
    return {
        "schema": COMPARISON_SCHEMA,
        "baseline": comparison.baseline,
        "rows": [report_object(row) for row in comparison.rows],
        "effects": [_effect(effect) for effect in comparison.effects],
        "failures": [{"label": failure.label, "reason": failure.reason} for failure in comparison.failures],
        "differences": list(comparison.differences),
    }


def diff_object(diff: Diff) -> dict[str, Json]:
    """The JSON object of a diff. Reports are named, not repeated: each has a document of its own."""
    effect = diff.comparison.effects[1]
    before, after = diff.before, diff.after
    return {
        "schema": DIFF_SCHEMA,
        "before": _side(before),
        "after": _side(after),
        "footprint_delta_bytes": effect.footprint_delta_bytes,
        "live_peak_delta_bytes": after.live_peak_bytes - before.live_peak_bytes,
        "categories_delta": {category.value: effect.categories_delta[category] for category in Category},
        "modules": _module_changes(before, after),
        "buffers": [matched_buffers_object(each) for each in diff.buffers],
        "differences": list(diff.comparison.differences),
    }


def matched_buffers_object(matched: MatchedBuffers) -> dict[str, Json]:
    """The JSON object of the buffers of one operation and shape, before and after."""
    return {
        "delta_bytes": matched.delta_bytes,
        "before_bytes": matched.before_bytes,
        "after_bytes": matched.after_bytes,
        "num_before": matched.num_before,
        "num_after": matched.num_after,
        "shape": list(matched.shape),
        "dtypes": list(matched.dtypes),
        "category": matched.category.value,
        "module": matched.module,
        "op": matched.op,
        "source": matched.source,
    }


def advice_object(advice: Advice) -> dict[str, Json]:
    """The JSON object of one piece of advice."""
    proposal = advice.proposal
    return {
        "rule": advice.rule,
        "what": proposal.what,
        "evidence": proposal.evidence,
        "cost": proposal.cost,
        "how_to": proposal.how_to,
        "technique": proposal.technique,
        "saving_bytes": advice.saving_bytes,
        "true_saving_bytes": advice.true_saving_bytes,
        "refusal": advice.refusal,
    }


def buffer_object(buffer: LiveBuffer) -> dict[str, Json]:
    """The JSON object of one buffer."""
    return {
        "size_bytes": buffer.size_bytes,
        "shape": list(buffer.shape),
        "dtype": buffer.dtype,
        "category": buffer.category.value,
        "module": buffer.module,
        "phase": buffer.phase.value,
        "name": buffer.name,
        "op": buffer.op,
        "source": buffer.source,
        "library": buffer.library,
        "rule": buffer.rule,
        "evidence": buffer.evidence,
        "start": buffer.start,
        "end": buffer.end,
        "offset": buffer.offset,
    }


def _measured(report: Report, measured: Measurement) -> Json:
    pool, resident = measured.pool, measured.resident
    timed = bool(measured.step_seconds)
    return {
        "device": measured.device,
        "platform": measured.platform,
        "num_steps": len(measured.step_seconds),
        "num_warmup_steps": measured.num_warmup_steps,
        "step_seconds_median": measured.median_seconds,
        "step_seconds_p10": measured.percentile_seconds(10) if timed else None,
        "step_seconds_p90": measured.percentile_seconds(90) if timed else None,
        "step_seconds": list(measured.step_seconds),
        "examples_per_second": measured.per_second(measured.num_examples),
        "tokens_per_second": measured.per_second(measured.num_tokens),
        "peak_flops_per_second": measured.peak_flops_per_second,
        "mfu": measured.utilization(report.flops - report.recomputed_flops),
        "losses": [_number(loss) for loss in measured.losses],
        "peak_bytes": pool.peak_bytes if pool else None,
        "resident_growth_bytes": resident.growth_bytes if resident else None,
        "predicted_bytes": report.footprint_bytes,
        "pool": _record(pool),
        "driver": _record(measured.driver),
        "resident": _record(resident),
        "out_of_memory": _record(measured.out_of_memory),
        "ops": [_operation(cost) for cost in report.op_costs],
    }


def _operation(cost: OpCost) -> Json:
    return {
        "name": cost.name,
        "op": cost.op,
        "seconds": cost.seconds,
        "num_calls": cost.num_calls,
        "contains_others": cost.contains_others,
        "phase": cost.phase.value,
        "module": cost.module,
        "category": cost.category.value if cost.category else None,
        "held_bytes": cost.held_bytes,
    }


def _record(record: PoolMemory | DriverMemory | ResidentMemory | OutOfMemory | None) -> Json:
    """A record of plain numbers and texts, field by field."""
    return None if record is None else asdict(record)


def _side(report: Report) -> Json:
    return {
        "label": report.label,
        **_origin(report),
        "footprint_bytes": report.footprint_bytes,
        "live_peak_bytes": report.live_peak_bytes,
        "categories": {category.value: report.categories[category] for category in Category},
    }


def _module_changes(before: Report, after: Report) -> Json:
    """Every module that either has, in the order of the models; bytes include those of the modules under it."""
    sizes = [{node.path: node.size_bytes for node in _walk(report.modules)} for report in (before, after)]
    paths = dict.fromkeys(path for side in sizes for path in side)
    pairs = ((path, sizes[0].get(path, 0), sizes[1].get(path, 0)) for path in paths)
    return [
        {"path": path, "delta_bytes": new - old, "before_bytes": old, "after_bytes": new} for path, old, new in pairs
    ]


def _effect(effect: Effect) -> Json:
    return {
        "label": effect.label,
        "footprint_delta_bytes": effect.footprint_delta_bytes,
        "footprint_ratio": effect.footprint_ratio,
        "categories_delta": {category.value: effect.categories_delta[category] for category in Category},
        "took_effect": effect.took_effect,
        "evidence": effect.evidence,
    }


def _origin(report: Report) -> dict[str, Json]:
    """What the step was compiled for, and with what."""
    target, tools = report.target, report.toolchain
    return {
        "target": {
            "name": target.name,
            "memory_bytes": target.memory_bytes,
            "description": target.description,
            "platform": target.platform,
            "compute_capability": target.compute_capability,
            "reason": target.reason,
        },
        "toolchain": {
            "memprof": tools.memprof,
            "jax": tools.jax,
            "jaxlib": tools.jaxlib,
            "python": tools.python,
            "cuda_plugin": tools.cuda_plugin,
            "flax": tools.flax,
            "optax": tools.optax,
            "xla_flags": tools.xla_flags,
            "jax_settings": dict(tools.jax_settings),
        },
    }


def _module(node: ModuleNode) -> Json:
    return {
        "path": node.path,
        "bytes": node.size_bytes,
        "num_params": node.num_params,
        "categories": {name: node.categories.get(category, 0) for category, name in _CATEGORY_NAMES},
        "params": [{"name": name, "shape": list(shape), "dtype": dtype} for name, shape, dtype in node.params],
    }


def _argument(leaf: ArgumentLeaf) -> Json:
    return {
        "path": leaf.path,
        "role": leaf.role.value,
        "shape": list(leaf.shape),
        "dtype": leaf.dtype,
        "size_bytes": leaf.size_bytes,
    }


def _walk(node: ModuleNode) -> Iterator[ModuleNode]:
    """A node before its children, so that the root (path "") comes first."""
    yield node
    for child in node.children:
        yield from _walk(child)


def _largest_first(sizes: Mapping[str, int]) -> dict[str, Json]:
    keys = sorted(sizes, key=lambda key: (-sizes[key], key))
    return {key: sizes[key] for key in keys}


def _number(value: str | float | bool | None) -> Json:
    """JSON has no infinity and no NaN: they become their names."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
