"""The validation on a device, as far as it can be looked at without one."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hlo import Step
from hlo_nodes import FORWARD, f32
from measurements import GPU_RUN, OUT_OF_MEMORY_RUN

from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Role

sys.path.append(str(Path(__file__).parents[2]))  # benchmarks are not installed

from benchmarks import validate

CONFIGURATION = validate.Configuration(workload="mlp", preset="tiny", techniques="donate")


def _capture() -> Capture:
    """Two arguments and a result of 16 bytes each."""
    step = Step()
    w = step.argument("params['w']", Role.PARAMS, f32(4))
    x = step.argument("x", Role.BATCH, f32(4))
    step.result(step.op("y", "multiply", f32(4), [w, x], FORWARD))
    return step.capture()


@pytest.mark.parametrize("configurations", [validate.ON_A_GPU, validate.REHEARSAL])
def test_there_are_twenty_configurations_and_all_can_be_built(
    configurations: tuple[validate.Configuration, ...],
) -> None:
    assert len({each.label for each in configurations}) == len(configurations) >= 20
    for each in configurations:
        each.task("cpu")


def test_a_row_sets_predictions_against_the_measured_peak() -> None:
    ran = validate.row_of(CONFIGURATION, replace(_capture(), measured=GPU_RUN))
    row = validate.with_prediction(ran, 1920)
    assert (row.deviceless_bytes, row.compiled_bytes, row.measured_bytes) == (1920, 48, 1536)
    assert row.deviceless_error_percent == 25
    assert row.compiled_error_percent == pytest.approx(-96.875)
    assert (row.first_loss, row.last_loss, row.note) == (4.5, 3, "")


def test_what_has_no_number_has_a_reason() -> None:
    failed = validate.with_prediction(validate.row_of(CONFIGURATION, "the step failed"), 48)
    assert (failed.measured_bytes, failed.deviceless_error_percent, failed.note) == (None, None, "the step failed")
    ran = validate.row_of(CONFIGURATION, replace(_capture(), measured=OUT_OF_MEMORY_RUN))
    full = validate.with_prediction(ran, "no ptxas")
    assert full.measured_bytes is None
    assert full.note.startswith("out of memory while running step 2 of 12: RESOURCE_EXHAUSTED")
    assert full.note.endswith("; deviceless: no ptxas")


def test_each_row_is_in_the_files_before_the_next_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, table = tmp_path / "result.json", tmp_path / "result.md"
    other = replace(CONFIGURATION, techniques="bf16")
    written: list[list[str]] = []

    def run(configuration: validate.Configuration, target: str) -> Capture | str:
        if results.exists():
            written.append([row["label"] for row in json.loads(results.read_text())["rows"]])
        return replace(_capture(), measured=GPU_RUN) if configuration is CONFIGURATION else "the step failed"

    monkeypatch.setattr(validate, "run_on_device", run)
    validation = validate.Validation([CONFIGURATION, other, replace(other, techniques="remat")], results, table)
    time_left = iter([True, True, False])
    validation.run("local", lambda: next(time_left))
    validation.end("2 minutes were over")

    assert written == [[CONFIGURATION.label]]
    rows = json.loads(results.read_text())["rows"]
    assert [row["note"] for row in rows] == ["", "the step failed", "skipped: 2 minutes were over"]
    assert all(row["label"] in table.read_text() for row in rows)
    assert sorted(tmp_path.iterdir()) == [results, table]


def test_the_summary_takes_the_rows_that_have_both_numbers() -> None:
    rows = [
        validate.Row(label="a", compiled_error_percent=-3.0),
        validate.Row(label="b", compiled_error_percent=1.0),
        validate.Row(label="c"),
    ]
    assert validate.summary(rows) == {
        "num_rows": 3,
        "deviceless_error_percent": {"num_rows": 0, "median": None, "max": None},
        "compiled_error_percent": {"num_rows": 2, "median": 2.0, "max": 3.0},
    }
