"""The JSON of a comparison: what DESIGN promises to other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from comparisons_data import COMPARISONS
from jsonschema import Draft202012Validator

from memprof.analysis.records.categories import Category
from memprof.reports.formats.json import FORMAT
from memprof.reports.options import RenderOptions

_SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "schema" / "comparison.schema.json").read_text())
_VALIDATOR = Draft202012Validator(_SCHEMA)


def _json(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(FORMAT.render_comparison(COMPARISONS[name](), RenderOptions()))
    return parsed


@pytest.mark.parametrize("name", [name for name in COMPARISONS if name != "many"])
def test_every_comparison_is_valid(name: str) -> None:
    Draft202012Validator.check_schema(_SCHEMA)
    assert [error.message for error in _VALIDATOR.iter_errors(_json(name))] == []


def test_the_schema_rejects_what_is_wrong() -> None:
    effect = _json("one_row")["effects"][0]
    for change in (
        {"schema": "memprof.report/1"},
        {"rows": [{}]},
        {"effects": [effect | {"took_effect": "yes"}]},
        {"effects": [effect | {"categories_delta": {"params": 0}}]},
        {"failures": [{"label": "without reason"}]},
    ):
        assert not _VALIDATOR.is_valid(_json("one_row") | change)


def test_a_comparison_field_by_field() -> None:
    comparison = _json("troubled")
    assert comparison["schema"] == "memprof.comparison/1"
    assert comparison["baseline"] == "transformer baseline"
    assert comparison["rows"] == [
        json.loads(FORMAT.render_report(row, RenderOptions())) for row in COMPARISONS["troubled"]().rows
    ]
    # bf16 halves 12 * 578,813,952 bytes of activations, and keeps a copy of 12 * 7,087,872 parameters
    assert comparison["effects"][1] == {
        "label": "transformer bf16+scan",
        "footprint_delta_bytes": 12 * (2 * 7_087_872 - 578_813_952 // 2),
        "footprint_ratio": 10_121_653_260 / 13_424_428_044,
        "categories_delta": {
            **{category.value: 0 for category in Category},
            "activations": -12 * 578_813_952 // 2,
            "param_copies": 12 * 2 * 7_087_872,
        },
        "took_effect": False,
        "evidence": "scan: expected a loop of 12 iterations over the layers, but the program has no loop; "
        "bf16: 100% of the bytes of activations but the logits are bf16",
    }
    assert [effect["took_effect"] for effect in comparison["effects"]] == [None, False, True]
    assert comparison["failures"] == [
        {"label": "transformer accum3", "reason": "the batch of 8 does not divide by 3"},
    ]
    assert comparison["differences"][0] == "target: rtx-a5000, small-8gb"
    assert [row["host_bytes"] for row in comparison["rows"]] == [0, 0, 256 * 2**20]


def test_the_options_do_not_matter() -> None:
    comparison = COMPARISONS["techniques"]()
    text = FORMAT.render_comparison(comparison, RenderOptions(width=40, top=1, color="256"))
    assert text == FORMAT.render_comparison(comparison, RenderOptions())
    assert text.isascii()


def test_the_categories_of_every_effect_add_up() -> None:
    for effect in _json("techniques")["effects"]:
        assert sum(effect["categories_delta"].values()) == effect["footprint_delta_bytes"]
