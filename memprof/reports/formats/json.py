"""JSON: the whole report for other programs, in the schema `memprof.report/1` (`docs/schema/report.schema.json`).

Fields may be added within a schema version, never renamed or removed. The order of keys is fixed, so that two reports
can be compared as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

from memprof.analysis.capture import ArgumentLeaf
from memprof.analysis.categories import Category
from memprof.analysis.report import LiveBuffer, ModuleNode, Report
from memprof.reports.format import Format, RenderOptions

SCHEMA = "memprof.report/1"

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def render_report(report: Report, options: RenderOptions) -> str:
    """The report as one JSON object. The options do not matter: data are never shortened."""
    del options
    return json.dumps(report_object(report), indent=1, allow_nan=False) + "\n"


def report_object(report: Report) -> dict[str, Json]:
    """The JSON object of one report."""
    compiler = report.compiler
    return {
        "schema": SCHEMA,
        "label": report.label,
        "workload": report.workload,
        "techniques": list(report.techniques),
        "config": {name: _number(value) for name, value in report.config.items()},
        **_origin(report),
        "footprint_bytes": report.footprint_bytes,
        "live_peak_bytes": report.live_peak_bytes,
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
        "buffers": [_buffer(buffer) for buffer in report.buffers],
        "unused_arguments": [_argument(leaf) for leaf in report.unused_arguments],
        "measured": None,
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
        },
    }


def _module(node: ModuleNode) -> Json:
    return {
        "path": node.path,
        "bytes": node.size_bytes,
        "num_params": node.num_params,
        "categories": {category.value: node.categories.get(category, 0) for category in Category},
        "params": [{"name": name, "shape": list(shape), "dtype": dtype} for name, shape, dtype in node.params],
    }


def _buffer(buffer: LiveBuffer) -> Json:
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
        "rule": buffer.rule,
        "evidence": buffer.evidence,
        "start": buffer.start,
        "end": buffer.end,
        "offset": buffer.offset,
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


FORMAT = Format(
    name="json",
    suffix=".json",
    summary="the whole report for other programs, in a versioned schema",
    render_report=render_report,
)
