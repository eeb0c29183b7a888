"""Speedscope files: stacks whose weights add up to the totals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from comparisons_data import techniques
from reports_data import REPORTS
from stacked_report import stacked

from memprof.reports.formats.speedscope import FORMAT
from memprof.reports.options import RenderOptions


def _file(name: str) -> dict[str, Any]:
    rendered = FORMAT.render_report(REPORTS[name](), RenderOptions())
    parsed: dict[str, Any] = json.loads(rendered)
    return parsed


@pytest.mark.parametrize("name", list(REPORTS))
def test_the_weights_add_up_to_the_two_totals(name: str) -> None:
    report, file = REPORTS[name](), _file(name)
    totals = [profile["endValue"] for profile in file["profiles"]]
    assert totals == [report.footprint_bytes, report.live_peak_bytes, report.live_peak_bytes]
    for profile in file["profiles"]:
        assert sum(profile["weights"]) == profile["endValue"]
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(0 <= frame < len(file["shared"]["frames"]) for stack in profile["samples"] for frame in stack)


def test_a_stack_is_module_operation_array() -> None:
    file = _file("transformer")
    names = [frame["name"] for frame in file["shared"]["frames"]]
    stacks = [[names[frame] for frame in stack] for stack in file["profiles"][1]["samples"]]
    assert ["layers_0", "attn", "exp", "f32[8,12,1024,1024], activations"] in stacks


def test_a_stack_of_calls_ends_with_operation_and_array() -> None:
    file = json.loads(FORMAT.render_report(stacked(), RenderOptions()))
    names = [frame["name"] for frame in file["shared"]["frames"]]
    stack = [names[frame] for frame in file["profiles"][2]["samples"][0]]
    assert stack[:2] + stack[-3:] == [
        *("step (train.py)", "step.loss (train.py)"),
        *("blocks.py:69", "dot", "f32[524288], activations"),
    ]


def test_a_comparison_has_a_profile_for_each_configuration() -> None:
    comparison = techniques()
    file = json.loads(FORMAT.render_comparison(comparison, RenderOptions()))
    assert [profile["endValue"] for profile in file["profiles"]] == [row.footprint_bytes for row in comparison.rows]
    assert file["profiles"][1]["name"] == "transformer donate, 11.1 GiB (-1.39 GiB)"
