"""Whole reports of programs by hand, and the verdict on every kind of pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from added_up_step import added_up_step
from made_compiles import made_capture
from pressed_plans import pressed
from recorded import check_recorded
from unit.analysis.scheduling.test_schedule import deferred

from memprof.analysis.memory.verdict import judge
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.pool import Allocator, Pieces, PoolSettings
from memprof.reports.format import format_named
from memprof.reports.options import RenderOptions
from memprof.sources.jax.targets.resolve import resolve


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("added_up", lambda: added_up_step().capture()),
        ("deferred", lambda: deferred().capture()),
        ("layers", lambda: made_capture(batch_size=4, num_layers=4)),
        ("pressed", lambda: pressed("first.remat")),
    ],
)
@pytest.mark.parametrize("target", ["l4", "cpu"])
def test_a_report_is_as_recorded(name: str, made: Callable[[], Capture], target: str) -> None:
    capture = made()
    report = replace(analyze(replace(capture, target=resolve(target))), analysis_seconds=0.0)
    text = format_named("json").render_report(report, RenderOptions())
    assert isinstance(text, str)
    check_recorded(f"{text}\n{report.roofline}\n", f"analysis/{name}_{target}.txt")


def test_verdicts_are_as_recorded() -> None:
    """Footprints by the share of the card, alone and with a reserve; of one piece, so that the sum decides."""
    lines = []
    for name, allocator, fraction, is_unified in product(
        ("l4", "b200", "cpu"), Allocator, (None, 0.9, 1.0, 1.5), (False, True)
    ):
        device = resolve(name)
        memory_bytes = device.memory_bytes or 10**9
        settings = PoolSettings(allocator=allocator, mem_fraction=fraction, unified_memory=is_unified)
        lines.append(f"{name} {allocator.value} {fraction} {'unified' if is_unified else ''}")
        for percent, reserve in ((76, 10**9), (93, 0), (120, 0)):
            found = judge(Pieces(held=(memory_bytes * percent // 100,)), device, settings, reserve_bytes=reserve)
            lines.append(f"  {percent}% {found.pool_bytes} {found.short_bytes} {found.needed_bytes} {found.sentence}")
    check_recorded("".join(f"{line}\n" for line in lines), "analysis/verdicts.txt")


@pytest.mark.parametrize(
    ("percent", "pressed_percent", "answer"),
    [
        (10, 5, "GiB"),
        (120, 50, "which fits"),
        (120, 80, "which fits with XLA_CLIENT_MEM_FRACTION=."),
        (120, 110, "which does not fit either"),
    ],
)
def test_the_verdict_says_what_recomputation_changes(percent: int, pressed_percent: int, answer: str) -> None:
    device = resolve("l4")
    assert device.memory_bytes is not None
    whole, pressed_pieces = (Pieces(held=(device.memory_bytes * share // 100,)) for share in (percent, pressed_percent))
    sentence = judge(whole, device, PoolSettings(), pressed=pressed_pieces).sentence
    _, _, told = sentence.rpartition("; with it, ")
    assert "(without XLA's recomputation)" in sentence
    assert answer in told
    assert ("which" in told) == (percent > 100)
    assert ("MEM_FRACTION" in told) == (pressed_percent == 80)
