"""Speedscope: the peak as flame graphs of bytes, for https://www.speedscope.app.

A report has several profiles to switch between: the footprint by category and module, and the live peak by module and
by Python stack, down to operation and array. A comparison has one profile for each configuration. The file follows
speedscope's `file-format-schema.json`: a sample is a stack of frames, weighted in bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from memprof.analysis.comparison import ReportComparison
from memprof.analysis.records.categories import Category
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import ModuleNode, Report
from memprof.reports.format import Format
from memprof.reports.json.types import Json
from memprof.reports.options import RenderOptions
from memprof.reports.palette import CATEGORY_LETTERS
from memprof.reports.text import printable
from memprof.reports.units import format_bytes, format_signed_bytes
from memprof.reports.views.hierarchies import NO_MODULE, Hierarchy, Paths, array_name
from memprof.version import __version__

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"

Stack = tuple[str, ...]


def render_report(report: Report, options: RenderOptions) -> str:
    """Render the footprint, and the live peak by module and by stack."""
    del options
    frames, paths = _Frames(), Paths(report)
    profiles = [
        frames.profile(f"footprint, {format_bytes(report.footprint_bytes)}", _by_category(report)),
        frames.profile(f"live peak, {format_bytes(report.live_peak_bytes)}", map(_by_module, report.buffers)),
        frames.profile(
            f"live peak by stack, {format_bytes(report.live_peak_bytes)}",
            (((*paths.of(each, Hierarchy.STACK), array_name(each)), each.size_bytes) for each in report.buffers),
        ),
    ]
    return _file(report.label, frames, profiles)


def render_comparison(comparison: ReportComparison, options: RenderOptions) -> str:
    """Render the footprint of each configuration."""
    del options
    frames = _Frames()
    profiles: list[Json] = []
    for report, effect in zip(comparison.rows, comparison.effects, strict=True):
        change = format_signed_bytes(effect.footprint_delta_bytes)
        name = f"{report.label}, {format_bytes(report.footprint_bytes)} ({change})"
        profiles.append(frames.profile(name, _by_category(report)))
    failed = [f"{failure.label} failed: {failure.reason}" for failure in comparison.failures]
    return _file("; ".join([f"compared with {comparison.baseline}", *failed]), frames, profiles)


class _Frames:
    """The distinct frame names of the stacks, in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        return list(self._numbers)

    def profile(self, name: str, weighted: Iterable[tuple[Stack, int]]) -> Json:
        samples: list[Json] = []
        weights: list[Json] = []
        total = 0
        for stack, size_bytes in weighted:
            samples.append([self._numbers.setdefault(frame, len(self._numbers)) for frame in stack])
            weights.append(size_bytes)
            total += size_bytes
        return {
            "type": "sampled",
            "name": _clean(name),
            "unit": "bytes",
            "startValue": 0,
            "endValue": total,
            "samples": samples,
            "weights": weights,
        }


def _by_category(report: Report) -> list[tuple[Stack, int]]:
    """Return the bytes of each module without its submodules, by category."""
    weighted: list[tuple[Stack, int]] = []
    for category in sorted(Category, key=lambda category: -report.categories[category]):
        size = report.categories[category]
        frame = f"{CATEGORY_LETTERS[category]} {category.value}, {format_bytes(size)}"
        if size:
            weighted += [((frame, *stack), own) for stack, own in _own_bytes(report.modules, category) if own]
    return weighted


def _own_bytes(node: ModuleNode, category: Category) -> Iterable[tuple[Stack, int]]:
    under = sum(child.categories.get(category, 0) for child in node.children)
    yield _module_frames(node.path), node.categories.get(category, 0) - under
    for child in node.children:
        yield from _own_bytes(child, category)


def _by_module(buffer: LiveBuffer) -> tuple[Stack, int]:
    operation = buffer.op.rpartition("/")[2] or buffer.name or "(no name)"
    return (*_module_frames(buffer.module), operation, array_name(buffer)), buffer.size_bytes


def _module_frames(path: str) -> Stack:
    return tuple(path.split("/")) if path else (NO_MODULE,)


def _file(name: str, frames: _Frames, profiles: Sequence[Json]) -> str:
    value: Json = {
        "$schema": _SCHEMA,
        "exporter": f"memprof@{__version__}",
        "name": _clean(name),
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": _clean(frame)} for frame in frames.names]},
        "profiles": list(profiles),
    }
    return json.dumps(value, allow_nan=False) + "\n"


def _clean(text: str) -> str:
    return printable(text, ascii_only=False)


FORMAT = Format(
    name="speedscope",
    suffix=".speedscope.json",
    summary="flame graphs of the peak by module and by stack, for https://www.speedscope.app",
    render_report=render_report,
    render_comparison=render_comparison,
    render_diff=render_comparison,  # both footprints
)
