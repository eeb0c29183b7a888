"""Advice on real programs: steps with one inefficiency planted, compiled for a GPU before and after it is mended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from integration.command import Command
from integration.test_command_line import WITHOUT_JAX
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from memprof.analysis.advice.advise import advise
from memprof.analysis.advice.what_if import footprint_without
from memprof.analysis.pipeline import analyze
from memprof.analysis.report import Report
from memprof.capture.parallel import CompileTask, compile_all, default_num_jobs
from memprof.workloads.subject import find_subject

PLANTED = Path(__file__).parents[1] / "planted.py"
SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"
TARGET = "h100-80gb"

# The rule that has to find each.
EXPECTED = {
    "state_not_donated": "donate_state",
    "float32_activations": "half_precision",
    "whole_logits": "chunked_loss",
    "attention_probabilities": "flash_attention",
    "residuals_of_blocks": "remat_modules",
    "residuals_of_a_scan": "remat_scan",
    "copies_of_parameters": "param_copies",
    "state_of_adam": "factored_optimizer",
    "float32_accumulators": "narrow_accumulators",
    "one_huge_array": "huge_buffer",
    "peak_in_the_update": "update_peak",
}


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    """Every step, and under `NAME mended` the same without its inefficiency."""
    tasks = [_task(name, []) for name in (*EXPECTED, "nothing_to_mend")]
    tasks += [_task(name, ["is_mended=true"]) for name in EXPECTED]
    found = {}
    for result in compile_all(tasks, num_jobs=default_num_jobs(), progress=lambda label, stage: None):
        assert result.capture is not None, f"{result.task.label}: {result.error}"
        found[result.task.label] = analyze(result.capture)
    return found


def _task(name: str, overrides: list[str]) -> CompileTask:
    subject = find_subject(f"{PLANTED}:{name}", overrides=overrides)
    label = f"{name} mended" if overrides else name
    arguments = subject.builder_arguments([])
    return CompileTask(label=label, builder=subject.builder, arguments=arguments, target=TARGET)


@pytest.mark.parametrize(("name", "rule"), EXPECTED.items())
def test_the_planted_inefficiency_comes_first(reports: dict[str, Report], name: str, rule: str) -> None:
    first = advise(reports[name])[0]
    assert first.rule == rule
    saved_bytes = reports[name].footprint_bytes - reports[f"{name} mended"].footprint_bytes
    assert first.saving_bytes == pytest.approx(saved_bytes, rel=0.1)


@pytest.mark.parametrize(("name", "rule"), EXPECTED.items())
def test_what_is_mended_is_worth_little_more(reports: dict[str, Report], name: str, rule: str) -> None:
    before, after = (
        sum(advice.saving_bytes for advice in advise(report) if advice.rule == rule)
        for report in (reports[name], reports[f"{name} mended"])
    )
    assert after < before / 4


def test_a_program_with_nothing_to_mend_gets_no_advice(reports: dict[str, Report]) -> None:
    assert advise(reports["nothing_to_mend"]) == ()


def test_a_timeline_played_again_unchanged_gives_the_footprint(reports: dict[str, Report]) -> None:
    for report in reports.values():
        assert footprint_without(report, lambda buffer: None) == report.footprint_bytes


def test_advice_of_a_saved_capture_needs_no_jax(memprof: Command, capture_path: Path) -> None:
    shown = memprof("advise", capture_path, **memprof.run_before_start(WITHOUT_JAX))
    assert shown.returncode == 0, shown.stderr
    assert "What could be done" in shown.stdout


def test_advice_as_json_is_valid_and_that_of_the_report(memprof: Command, capture_path: Path) -> None:
    advice = json.loads(memprof("advise", capture_path, "--format", "json").stdout)
    report = json.loads(memprof("show", capture_path, "--format", "json").stdout)
    schemas = {name: json.loads((SCHEMAS / name).read_text()) for name in ("advice.schema.json", "report.schema.json")}
    registry: Registry[Any] = Registry().with_resources(
        (name, Resource.from_contents(schema)) for name, schema in schemas.items()
    )
    Draft202012Validator(schemas["advice.schema.json"], registry=registry).validate(advice)
    assert advice["advice"] == report["advice"] != []


def test_verified_advice_stands_beside_what_is_true(memprof: Command) -> None:
    step = ("run", "mlp", "--preset", "tiny", "--target", "cpu", "--no-save", "--format", "json")
    ran = memprof(*step, "--advise", "--verify")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    verified = [advice for advice in report["advice"] if advice["true_saving_bytes"] is not None]
    assert verified
    other = json.loads(memprof(*step, "-t", verified[0]["technique"]).stdout)
    assert verified[0]["true_saving_bytes"] == report["footprint_bytes"] - other["footprint_bytes"]


def test_there_is_nothing_to_verify_without_advice(memprof: Command) -> None:
    refused = memprof("run", "mlp", "--verify")
    assert refused.returncode == 2
    assert "--advise" in refused.stderr
