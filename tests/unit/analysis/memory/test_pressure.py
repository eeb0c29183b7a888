"""Memory pressure: what XLA recomputes on its own, and whose plan verdicts and advice use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hlo import Step
from hlo_nodes import FORWARD, f32
from pressed_plans import CARD, FLOPS, MIB, plan, pressed

from memprof.analysis.memory.verdict import judge
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Role
from memprof.analysis.records.pool import Answer, Pieces, PoolSettings
from memprof.analysis.records.pressure import Pressure
from memprof.errors import InternalError, MemprofError
from memprof.reports.json.report import report_json
from memprof.reports.views.header import pressure_sentence
from memprof.sources.capture_file import read_capture, write_capture
from memprof.studies.advice.advise import advise


def test_values_and_operations_that_xla_recomputes_are_counted() -> None:
    report = analyze(pressed("first.remat", "second.remat2"))
    unlimited = analyze(plan())
    assert report.pressure == Pressure(
        planned_bytes=15 * MIB // 2,
        recomputed_values=2,
        recomputed_flops=2 * FLOPS,
        footprint_without_limit_bytes=unlimited.footprint_bytes,
    )
    assert report.footprint_bytes == analyze(plan("first.remat", "second.remat2")).footprint_bytes
    assert report_json(report).pressure is not None


def test_more_recomputed_operations_than_any_step_has_are_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = pressed("first.remat", "second.remat2")
    monkeypatch.setattr("memprof.analysis.memory.pressure.MAX_OPERATIONS", 2 * FLOPS)
    assert analyze(capture).pressure is not None
    monkeypatch.setattr("memprof.analysis.memory.pressure.MAX_OPERATIONS", 2 * FLOPS - 1)
    with pytest.raises(InternalError, match="recomputes more operations than any step has"):
        analyze(capture)


def test_a_value_in_a_loop_counts_once_and_its_operations_each_time() -> None:
    step = Step()
    w = step.argument("params['w']", Role.PARAMS, f32(1024, 512))
    x = step.argument("x", Role.BATCH, f32(512, 1024))
    body, condition = step.computation("body"), step.computation("condition")
    carried = step.tuple(x, w)
    state = body.parameter(carried.shape)
    left, right = body.element(state, 0), body.element(state, 1)
    body.op("h.remat", "dot", f32(512, 512), [left, right], FORWARD, contracting=(1,))
    body.tuple(left, right)
    condition.op("go", "constant", f32(), [condition.parameter(carried.shape)])
    looped = step.op("loop", "while", carried.shape, [carried], called=[body, condition], number=5, shares=carried)
    step.result(step.op("last", "negate", f32(512, 1024), [step.element(looped, 0)], FORWARD))
    found = analyze(step.capture()).pressure
    assert found is not None
    assert (found.recomputed_values, found.recomputed_flops) == (1, 5 * FLOPS)


def test_a_step_of_which_nothing_is_recomputed_has_no_pressure() -> None:
    report = analyze(plan())
    assert (report.pressure, report.without_limit, report.unpressed) == (None, None, report)
    assert report_json(report).pressure is None


def test_a_name_that_the_plan_without_a_limit_has_too_is_no_pressure() -> None:
    capture = plan("first.remat")
    report = analyze(replace(capture, proto_without_limit=capture.hlo_proto))
    assert (report.pressure, report.without_limit) == (None, None)


def test_of_a_program_compiled_elsewhere_the_footprint_without_the_limit_is_unknown() -> None:
    report = analyze(plan("first.remat"))
    assert report.pressure is not None
    assert report.pressure.footprint_without_limit_bytes is None
    assert report.verdict == judge(report.pieces, CARD, report.pool)
    assert pressure_sentence(report.pressure) == (
        "XLA recomputes 1 value (537 MFLOP) to get under 7.50 MiB, JAX's pool; the footprint without that limit"
        " is unknown, because the program was not compiled without it"
    )


def test_verdict_and_advice_are_those_of_the_plan_without_pressure() -> None:
    report, unlimited = analyze(pressed("first.remat")), analyze(plan())
    assert report.footprint_bytes < unlimited.footprint_bytes
    assert report.pieces == unlimited.pieces
    kept = {"answer", "pool_bytes", "mem_fraction", "short_bytes"}
    assert {name: getattr(report.verdict, name) for name in kept} == {
        name: getattr(unlimited.verdict, name) for name in kept
    }
    assert [(each.rule, each.saving_bytes) for each in advise(report)] == [
        (each.rule, each.saving_bytes) for each in advise(unlimited)
    ]


def test_a_capture_file_keeps_both_plans(tmp_path: Path) -> None:
    capture = pressed("first.remat")
    path = write_capture(capture, tmp_path / "step.memprof")
    read = read_capture(path)
    assert read.proto_without_limit == capture.proto_without_limit
    assert analyze(read).pressure == analyze(capture).pressure


def test_another_plan_without_a_limit_is_damage_to_the_file(tmp_path: Path) -> None:
    capture = read_capture(write_capture(pressed("first.remat"), tmp_path / "step.memprof"))
    other = plan("first.remat3").hlo_proto
    with pytest.raises(MemprofError, match=r"step\.memprof is damaged.*replaying the heap traces gives another"):
        analyze(replace(capture, proto_without_limit=other))
    with pytest.raises(MemprofError, match="cannot be read"):
        analyze(replace(capture, proto_without_limit=b"\xff"))


@pytest.mark.parametrize(
    ("needs", "takes", "sentence"),
    [
        (
            40,
            30,
            "fits: footprint 40.0 MiB (without XLA's recomputation) of {pool}, 5.00 MiB to spare; with it, 30.0 MiB",
        ),
        (48, 40, "{over} 3.00 MiB more than {pool}{most}; with it, 40.0 MiB, which fits"),
        (48, 47, "{over} 3.00 MiB more than {pool}{most}; with it, 47.0 MiB, which does not fit either"),
    ],
)
def test_the_sentence_says_what_pressure_changes(needs: int, takes: int, sentence: str) -> None:
    card = replace(CARD, memory_bytes=60 * MIB)
    verdict = judge(Pieces(temps=(needs * MIB,)), card, PoolSettings(), pressed=Pieces(temps=(takes * MIB,)))
    most = ", and XLA_CLIENT_MEM_FRACTION=.00, the largest that leaves room for CUDA's libraries, gives 0 B"
    assert verdict.sentence == sentence.format(
        pool="JAX's pool of 45.0 MiB (75% of small's 60.0 MiB, the default)",
        over=f"does not fit: footprint {needs}.0 MiB (without XLA's recomputation) is",
        most=most,
    )
    assert verdict.answer is (Answer.FITS if needs <= 45 else Answer.DOES_NOT_FIT)


def test_a_share_that_fits_both_ways_is_told_for_each() -> None:
    card = replace(CARD, memory_bytes=100 << 30)
    verdict = judge(Pieces(temps=(90 << 30,)), card, PoolSettings(), pressed=Pieces(temps=(78 << 30,)))
    assert verdict.mem_fraction == 0.9
    assert verdict.sentence.endswith("; with it, 78.0 GiB, which fits with XLA_CLIENT_MEM_FRACTION=.78")


@pytest.mark.parametrize(
    ("pressure", "sentence"),
    [
        (
            Pressure(
                planned_bytes=32 << 30,
                recomputed_values=18,
                recomputed_flops=13_194_139_533_312,
                footprint_without_limit_bytes=50 << 30,
            ),
            "XLA recomputes 18 values (13.2 TFLOP) to get under 32.0 GiB, JAX's pool; without that limit it would"
            " need 50.0 GiB",
        ),
        (
            Pressure(
                planned_bytes=32 << 30,
                recomputed_values=1,
                recomputed_flops=0,
                footprint_without_limit_bytes=31 << 30,
            ),
            "XLA recomputes 1 value (no matrix products) to get under 32.0 GiB, JAX's pool, by its own estimate;"
            " without that limit it would need 31.0 GiB",
        ),
    ],
)
def test_the_sentence_about_pressure(pressure: Pressure, sentence: str) -> None:
    assert pressure_sentence(pressure) == sentence
