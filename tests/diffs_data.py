"""The hand-made diffs that all formats are tested with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from report_builder import buffer, report
from reports_data import empty, hostile_names, many_buffers, one_buffer

from memprof.analysis.comparison import ReportComparison, diff
from memprof.analysis.records.categories import Category


def nothing() -> ReportComparison:
    """From a step of nothing to another."""
    return diff(empty(), replace(empty(), label="tiny other"))


def equal() -> ReportComparison:
    """The same twice."""
    return diff(one_buffer(), replace(one_buffer(), label="tiny again"))


def precision() -> ReportComparison:
    """Two layers' activations from f32 to bf16, a buffer gone, and a new one.

    Before: 2 * 4096 + 512 = 8704 bytes. After: 2 * 2048 + 128 = 4224. The change is -4480.
    """
    layers = [f"jit(step)/jvp(Net)/layers_{number}/dot" for number in range(2)]
    before = [buffer((1024,), "f32", Category.ACTIVATIONS, module=f"layers_{n}", op=op) for n, op in enumerate(layers)]
    after = [buffer((1024,), "bf16", Category.ACTIVATIONS, module=f"layers_{n}", op=op) for n, op in enumerate(layers)]
    before.append(buffer((128,), "f32", Category.COTANGENTS, op="jit(step)/transpose(jvp(Net))/mul"))
    after.append(buffer((64,), "bf16", Category.PARAM_COPIES, op="jit(step)/convert_element_type"))
    return diff(report(before, label="tiny baseline"), report(after, label="tiny bf16"))


def hostile() -> ReportComparison:
    """Names that try to break the output, against nothing."""
    return diff(report(label="tiny <script>"), hostile_names())


def many() -> ReportComparison:
    """Hundreds of buffers that one of the two does not have."""
    return diff(many_buffers(600), replace(many_buffers(400), label="tiny fewer"))


DIFFS: Mapping[str, Callable[[], ReportComparison]] = {
    "nothing": nothing,
    "equal": equal,
    "precision": precision,
    "hostile": hostile,
    "many": many,
}
