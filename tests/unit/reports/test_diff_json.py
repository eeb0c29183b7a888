"""The JSON of a diff: what other programs rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from diffs_data import DIFFS
from jsonschema import Draft202012Validator

from memprof.reports.formats.json import FORMAT
from memprof.reports.options import RenderOptions

_SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "schema" / "diff.schema.json").read_text())
_VALIDATOR = Draft202012Validator(_SCHEMA)


def _json(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(FORMAT.render_diff(DIFFS[name](), RenderOptions()))
    return parsed


@pytest.mark.parametrize("name", list(DIFFS))
def test_every_diff_is_valid(name: str) -> None:
    Draft202012Validator.check_schema(_SCHEMA)
    assert [error.message for error in _VALIDATOR.iter_errors(_json(name))] == []


def test_the_schema_rejects_what_is_wrong() -> None:
    matched = _json("precision")["buffers"][0]
    for change in (
        {"schema": "memprof.report/1"},
        {"before": {}},
        {"footprint_delta_bytes": 0.5},
        {"categories_delta": {"params": 0}},
        {"buffers": [{**matched, "category": "no category"}]},
        {"buffers": [{**matched, "before_bytes": -1}]},
    ):
        assert not _VALIDATOR.is_valid(_json("precision") | change), change


@pytest.mark.parametrize("name", list(DIFFS))
def test_every_breakdown_adds_up(name: str) -> None:
    diff = _json(name)
    before, after = diff["before"], diff["after"]
    assert sum(diff["categories_delta"].values()) == diff["footprint_delta_bytes"]
    assert sum(each["delta_bytes"] for each in diff["buffers"]) == diff["live_peak_delta_bytes"]
    assert diff["modules"][0] == {
        "path": "",
        "delta_bytes": diff["footprint_delta_bytes"],
        "before_bytes": before["footprint_bytes"],
        "after_bytes": after["footprint_bytes"],
    }
