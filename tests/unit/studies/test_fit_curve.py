"""The largest batch for each length, with captures by hand where children would compile."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hlo import Step
from hlo_nodes import f32
from jsonschema import Draft202012Validator

from memprof.analysis.hlo.decoded import FreshCapture
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Role
from memprof.analysis.records.pool import Allocator, PoolSettings
from memprof.errors import MemprofError
from memprof.reports.formats.json import render_object
from memprof.reports.formats.terminal import lower
from memprof.reports.json.fit_curve import fit_curve_json
from memprof.reports.options import RenderOptions
from memprof.reports.views.fit import fit_curve_document
from memprof.sources.jax.processes.task import Task
from memprof.sources.jax.targets.resolve import resolve
from memprof.studies.fit import value as fits
from memprof.studies.fit.budget import MemoryRequest
from memprof.studies.fit.curve import fit_curve
from memprof.studies.fit.results import FitCurve
from memprof.studies.fit.search import NothingFitsError
from memprof.studies.fit.value import FitRequest
from memprof.studies.subject import find_subject

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "schema" / "fit_curve.schema.json").read_text())
# Half of the memory, in an allocator that needs no single piece: so the pool is known to the byte.
HALF = PoolSettings(allocator=Allocator.VMM, mem_fraction=0.5)


def _capture(batch_size: int, length: int) -> Capture:
    """A step of 256 bytes of weights and as many of a result, and 4 bytes for each token."""
    step = Step()
    w = step.argument("params['w']", Role.PARAMS, f32(64))
    x = step.argument("cache", Role.KV_CACHE, f32(batch_size, length))
    step.result(step.op("out", "subtract", f32(64), [w, x], "jit(step)/op"))
    return replace(step.capture(), config={"batch_size": batch_size, "length": length})


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The batches and lengths that were compiled."""
    found: list[tuple[int, int]] = []

    def compile_in_child(task: Task, *, progress: Callable[[str], None]) -> FreshCapture:
        values = {"batch_size": "4", "length": "16", **dict(getattr(task.recipe, "overrides", ()))}
        sizes = int(values["batch_size"]), int(values["length"])
        found.append(sizes)
        return FreshCapture(capture=replace(_capture(*sizes), target=task.target))

    monkeypatch.setattr(fits, "compile_in_child", compile_in_child)
    return found


def _curve(*values: int, against: str = "length", memory: str = "8KiB") -> FitCurve:
    memory_request = MemoryRequest(target=resolve("l4"), memory=memory, reserve="0", pool=HALF)
    request = FitRequest(
        subject=find_subject("mine.steps:step"), techniques="", field="batch_size", memory=memory_request
    )
    return fit_curve(
        request, against=against, values=values, progress=lambda stage: None, keep=lambda capture, at, value: None
    )


def _answers(curve: FitCurve) -> dict[int, int | None]:
    return {point.at: None if point.found is None else point.found.value for point in curve.points}


def test_each_value_has_its_largest_batch(compiled: list[tuple[int, int]]) -> None:
    # Half of 8,192 bytes less 512: 896 tokens of 4 bytes.
    curve = _curve(64, 16, 32, 16)
    assert _answers(curve) == {16: 56, 32: 28, 64: 14}
    # The second and third search begin at the answer that as many tokens have.
    assert [sizes for sizes in compiled if sizes[1] > 16] == [
        (28, 32),
        (56, 32),
        (29, 32),
        (14, 64),
        (28, 64),
        (15, 64),
    ]


def test_without_values_they_lie_around_the_fields_own(compiled: list[tuple[int, int]]) -> None:
    assert _answers(_curve()) == {4: 224, 8: 112, 16: 56, 32: 28, 64: 14}


def test_a_value_at_which_nothing_fits_is_a_row_with_its_reason(compiled: list[tuple[int, int]]) -> None:
    curve = _curve(448, 2048)
    assert _answers(curve) == {448: 2, 2048: None}
    printed = json.loads(render_object(fit_curve_json(curve)))
    Draft202012Validator(SCHEMA).validate(printed)
    assert [point["value"] for point in printed["points"]] == [2, None]
    assert printed["points"][0]["footprint_bytes"] == 512 + 4 * 2 * 448 <= printed["budget_bytes"] == 4096
    assert printed["points"][0]["next_footprint_bytes"] == 512 + 4 * 3 * 448
    assert printed["points"][0]["command"].endswith("--set length=448 --set batch_size=2")
    assert printed["points"][1]["refusal"].startswith("not even batch_size=1 fits")
    shown = lower(fit_curve_document(curve), RenderOptions(width=120))
    assert "none fits" in shown
    assert "length=2048: not even batch_size=1 fits" in shown


def test_nothing_that_fits_anywhere_is_an_error(compiled: list[tuple[int, int]]) -> None:
    with pytest.raises(NothingFitsError, match=r"^at length=2048, not even batch_size=1 fits"):
        _curve(4096, 2048)


@pytest.mark.parametrize(
    ("against", "sentence"),
    [
        ("batch_size", "batch_size is already varied: name another field with --against"),
        ("devices", "--against is for two fields of the step"),
        ("lenght", r"lenght"),
    ],
)
def test_the_other_field_is_another_number_of_the_step(
    compiled: list[tuple[int, int]], against: str, sentence: str
) -> None:
    with pytest.raises(MemprofError, match=sentence):
        _curve(against=against)
