"""What the tests in a browser share: a report to look at, and ways to point at its page and read it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from report_builder import buffer, report

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.report import Report
from memprof.analysis.records.timeline import LiveChange, PhaseSpan, Timeline
from memprof.reports.formats.html import FORMAT
from memprof.reports.options import RenderOptions

OpenPage = Callable[..., Any]


def staircase() -> Report:
    """Three activations of 1, 2 and 4 MiB that come alive one after the other at 10, 20 and 30 and die at 80, 70, 60.

    Live beside 1 MiB of parameters: 2 MiB from 10, 4 MiB from 20, 8 MiB from 30 (the peak), 4 from 60, 2 from 70.
    """
    mebi = 2**20
    names = ("first", "second", "third")
    arguments = [buffer((mebi // 4,), "f32", Category.PARAMS, op="params['w']", phase=Phase.ARGUMENT)]
    stairs = [
        replace(
            buffer((2**n * mebi // 4,), "f32", Category.ACTIVATIONS, module=f"net/{name}", op=f"jit(step)/{name}/dot"),
            start=10 * (n + 1),
            end=80 - 10 * n,
            offset=mebi * (2**n - 1),
        )
        for n, name in enumerate(names)
    ]
    made = report([*arguments, *stairs], label="tiny stairs")
    sizes = [each.size_bytes for each in stairs]
    changes = [LiveChange(10 * (n + 1), Category.ACTIVATIONS, size) for n, size in enumerate(sizes)]
    changes += [LiveChange(60 + 10 * n, Category.ACTIVATIONS, -size) for n, size in enumerate(reversed(sizes))]
    live = sorted([*arguments, *stairs], key=lambda each: -each.size_bytes)
    return replace(
        made,
        buffers=tuple(live),
        temp_buffers=tuple(stairs),
        timeline=Timeline(
            num_positions=100,
            base={Category.PARAMS: mebi},
            changes=tuple(changes),
            temp_changes=tuple((n, 5 - n) for n in range(len(stairs))),
            phases=(
                PhaseSpan(phase=Phase.FORWARD, start=0, end=49),
                PhaseSpan(phase=Phase.BACKWARD, start=50, end=99),
            ),
            peak_position=30,
        ),
    )


def report_html(made: Report) -> str | bytes:
    return FORMAT.render_report(made, RenderOptions())


def point_at(page: Any, plot: str, share_x: float, share_y: float = 0.5) -> tuple[float, float]:
    """The middle of the screen is `share` of the way through a chart's area."""
    page.locator(plot).scroll_into_view_if_needed()
    area = page.locator(f"{plot} .area").bounding_box()
    return area["x"] + share_x * area["width"], area["y"] + share_y * area["height"]


def shown_positions(page: Any, plot: str) -> str:
    text: str = page.locator(f"{plot} [role=status]").inner_text()
    return text


def until(page: Any, condition: str) -> None:
    """Wait for a condition. Playwright's own way would have the page evaluate a text, which its policy forbids."""
    deadline = time.monotonic() + 10
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)
