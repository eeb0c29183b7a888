"""pprof: the live peak as `profile.proto`, for `go tool pprof` and compatible viewers.

Each live buffer is a sample. Its frames are its Python stack (or its module path if it has no stack), and below that
its operation. The sample types are `space` (bytes) and `allocations` (count), as in JAX's own memory profile, and one
in bytes for each category, so that a viewer can show one category. The labels contain category, phase, module, array
and operation.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from typing import Any

from memprof.analysis.comparison import ReportComparison
from memprof.analysis.memory.pprof import Profile
from memprof.analysis.records.categories import Category
from memprof.analysis.records.live_buffer import LiveBuffer, array_type
from memprof.analysis.records.report import Report
from memprof.reports.format import Format
from memprof.reports.options import RenderOptions
from memprof.reports.text import printable
from memprof.version import __version__

_Call = tuple[str, str, int]  # function, file, line


def render_report(report: Report, options: RenderOptions) -> bytes:
    """Render the live peak, gzipped. Equal reports give equal bytes."""
    del options
    return _Writer([report]).packed()


def render_comparison(comparison: ReportComparison, options: RenderOptions) -> bytes:
    """Render the live peaks of all configurations, each below a frame with its name."""
    del options
    return _Writer(comparison.rows).packed()


class _Writer:
    """Fills a profile, storing each distinct text, function and call once."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self._profile: Any = Profile()
        self._texts: dict[str, int] = {}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[_Call, int] = {}
        self._text("")
        held = {buffer.category for report in reports for buffer in report.buffers}
        self._categories = [category for category in Category if category in held]
        types = [("allocations", "count"), *((each.value, "bytes") for each in self._categories), ("space", "bytes")]
        for name, unit in types:
            self._profile.sample_type.add(type=self._text(name), unit=self._text(unit))
        self._profile.default_sample_type = self._text("space")
        for report in reports:
            about = f"memprof {__version__}: live peak of {report.label} on {report.target.name}"
            self._profile.comment.append(self._text(about))
            around = [(report.label, "", 0)] if len(reports) > 1 else []
            for buffer in report.buffers:
                self._add(buffer, [*around, *_calls(buffer)])
        self._profile.string_table.extend(self._texts)

    def packed(self) -> bytes:
        """Return the gzipped content of the profile's file."""
        return gzip.compress(self._profile.SerializeToString(deterministic=True), mtime=0)

    def _add(self, buffer: LiveBuffer, calls: Sequence[_Call]) -> None:
        by_category = [buffer.size_bytes if buffer.category is each else 0 for each in self._categories]
        sample = self._profile.sample.add(value=[1, *by_category, buffer.size_bytes])
        sample.location_id.extend(self._location(*call) for call in reversed(calls))
        labels = {
            "category": buffer.category.value,
            "phase": buffer.phase.value,
            "module": buffer.module,
            "array": array_type(buffer.dtype, buffer.shape),
            "op": buffer.op,
        }
        for key, value in labels.items():
            if value:
                sample.label.add(key=self._text(key), str=self._text(value))

    def _location(self, function: str, file: str, line: int) -> int:
        call = (function, file, line)
        if call not in self._locations:
            self._locations[call] = len(self._locations) + 1
            location = self._profile.location.add(id=self._locations[call])
            location.line.add(function_id=self._function(function, file), line=line)
        return self._locations[call]

    def _function(self, name: str, file: str) -> int:
        key = (name, file)
        if key not in self._functions:
            self._functions[key] = len(self._functions) + 1
            text = self._text(name)
            self._profile.function.add(id=self._functions[key], name=text, system_name=text, filename=self._text(file))
        return self._functions[key]

    def _text(self, text: str) -> int:
        return self._texts.setdefault(printable(text, ascii_only=False), len(self._texts))


def _calls(buffer: LiveBuffer) -> list[_Call]:
    """Return the calls around a buffer, outermost first, followed by its operation."""
    calls: list[_Call] = [(each.function or each.file, each.file, each.line) for each in buffer.stack]
    if not calls:
        calls = [(part, "", 0) for part in buffer.module.split("/") if part]
    operation = buffer.op.rpartition("/")[2] or buffer.name or "(no name)"
    return [*calls, (operation, "", 0)]


FORMAT = Format(
    name="pprof",
    suffix=".pb.gz",
    summary="the live peak for `go tool pprof` and other viewers: bytes by category, count",
    render_report=render_report,
    render_comparison=render_comparison,
    render_diff=render_comparison,
    is_file=True,
)
