"""The gate: planted growth is caught or passed as the threshold says, and what is not comparable is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from added_up_step import added_up_step
from jsonschema import Draft202012Validator
from report_builder import H100, buffer, report

from memprof.analysis.comparison import NamedChange, Verdict
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Topology
from memprof.analysis.records.categories import Category
from memprof.analysis.records.pressure import Pressure
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.reports.formats.json import render_object
from memprof.reports.json.answers import check_json
from memprof.reports.views.check import check_document
from memprof.sources.jax.targets.resolve import resolve, topology_of
from memprof.studies.check.baseline import baseline_of, read_baseline, write_baseline
from memprof.studies.check.check import Item, Maximum, Threshold, check, parse_threshold
from memprof.studies.check.gate import (
    check_capture,
    check_replaceable,
    limits_of,
    load_baseline,
    target_of,
    update_baseline,
)

_SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "schema" / "check.schema.json").read_text())
_NUM_BYTES = 4000  # of each category, 1000 float32 numbers
_TOTAL = len(Category) * _NUM_BYTES  # of `_step`
_TWO_KILOBYTES_MORE = f"footprint went from {_TOTAL:,} to {_TOTAL + 2000:,} bytes ({2000 / _TOTAL:+.2%})"


def _step(grown: Category | None = None, percent: int = 0) -> Report:
    """1000 numbers in every category but fragmentation, and `percent` more in one of them."""
    buffers = [
        buffer((1000 + (10 * percent if category is grown else 0),), "f32", category, module=f"layers/{category}")
        for category in Category
        if category is not Category.FRAGMENTATION
    ]
    return report(buffers, fragmentation=_NUM_BYTES + (40 * percent if grown is Category.FRAGMENTATION else 0))


@pytest.mark.parametrize("category", Category)
@pytest.mark.parametrize("percent", [1, 5, 50])
def test_growth_of_a_category_is_caught_above_its_threshold_alone(category: Category, percent: int) -> None:
    before, after = baseline_of(_step()), _step(category, percent)
    for allowed in range(51):
        result = check(after, baseline=before, thresholds=[parse_threshold(f"{category.value}:+{allowed}%")])
        assert result.passed == (percent <= allowed)
    other = next(each for each in Category if each is not category)
    assert check(after, baseline=before, thresholds=[parse_threshold(f"{other.value}:+0%")]).passed


def test_growth_is_told_by_category_module_and_buffer() -> None:
    result = check(_step(Category.ACTIVATIONS, 50), baseline=baseline_of(_step()))
    assert result.changes[0] == NamedChange(what="category", name="activations", before_bytes=4000, after_bytes=6000)
    buffers = [change for change in result.changes if change.what == "buffer"]
    assert [(change.name, change.delta_bytes) for change in buffers] == [
        ("f32[1500] activations layers/activations", 6000),
        ("f32[1000] activations layers/activations", -4000),
    ]


def test_an_amount_is_a_threshold_too() -> None:
    before, after = baseline_of(_step()), _step(Category.GRADIENTS, 50)  # 2000 bytes more
    assert check(after, baseline=before, thresholds=[parse_threshold("footprint:+2000B")]).passed
    result = check(after, baseline=before, thresholds=[parse_threshold("footprint:+1999B")])
    assert [item.sentence for item in result.items] == [f"{_TWO_KILOBYTES_MORE}; the limit is footprint:+1999B"]
    assert not result.passed


def test_growth_from_nothing_is_more_than_any_share() -> None:
    before = baseline_of(report([buffer((10,), "f32", Category.PARAMS)]))
    after = report([buffer((10,), "f32", Category.PARAMS), buffer((1,), "f32", Category.OUTPUTS)])
    assert not check(after, baseline=before, thresholds=[parse_threshold("outputs:+1000%")]).passed


def test_the_maximum_itself_passes_and_one_byte_less_fails() -> None:
    step = _step()
    (item,) = check(step, maxima=[Maximum(size_bytes=_TOTAL, reason="--max")]).items
    assert (item.passed, item.sentence) == (True, f"the footprint of {_TOTAL:,} bytes is within {_TOTAL:,} (--max)")
    result = check(step, maxima=[Maximum(size_bytes=_TOTAL - 1, reason="--max")])
    assert [item.sentence for item in result.items] == [
        f"the footprint of {_TOTAL:,} bytes exceeds {_TOTAL - 1:,} by 1 (--max)"
    ]


def test_a_technique_without_effect_fails() -> None:
    verdict = Verdict(took_effect=False, evidence="bf16: no buffer is bf16")
    assert not check(_step(), effects=[verdict]).passed


def test_another_workload_or_target_fails_and_another_jax_is_named() -> None:
    step = _step()
    elsewhere = replace(
        step,
        workload="other",
        target=replace(H100, name="l4"),
        toolchain=replace(step.toolchain, jax="0.13.0"),
    )
    result = check(elsewhere, baseline=baseline_of(step))
    assert [item.sentence for item in result.items if not item.passed] == [
        "the baseline differs in its workload: tiny, now other",
        "the baseline differs in its target: h100-80gb, now l4",
    ]
    assert result.differences == ("jax was 0.12.0 and is 0.13.0",)


def test_a_baseline_of_another_mesh_fails_and_is_not_compared(tmp_path: Path) -> None:
    one = _step()
    topology = Topology(num_devices=8, num_hosts=2, axes={"fsdp": 4, "tp": 2})
    eight = replace(one, target=replace(H100, topology=topology), footprint_bytes=2 * one.footprint_bytes)
    threshold = parse_threshold("footprint:+0%")
    for before, now, sentence in (
        (one, eight, "one device, now fsdp=4,tp=2 (8 devices on 2 hosts)"),
        (eight, one, "fsdp=4,tp=2 (8 devices on 2 hosts), now one device"),
    ):
        result = check(now, baseline=baseline_of(before), thresholds=[threshold])
        assert [(item.passed, item.sentence) for item in result.items] == [
            (False, f"the baseline differs in its mesh: {sentence}")
        ]
        assert result.changes == ()
    # One that was written before there were meshes is of one device.
    path = tmp_path / "baseline.json"
    old = baseline_of(one)
    write_baseline(replace(old, origin={key: old.origin[key] for key in ("workload", "techniques", "target")}), path)
    assert check(one, baseline=read_baseline(path), thresholds=[threshold]).passed


def _pressed(*, without_limit: Report | None) -> Report:
    """A step of which XLA recomputes a value: 4,000 bytes for a card whatever it takes without a limit."""
    pressure = Pressure(planned_bytes=None, recomputed_values=1, recomputed_flops=0, footprint_without_limit_bytes=None)
    card = report([buffer((1000,), "f32", Category.PARAMS, module="layers/params")])
    return replace(card, pressure=pressure, without_limit=without_limit)


@pytest.mark.parametrize("is_pressed_before", [True, False])
def test_growth_that_xla_hides_by_recomputing_is_found(tmp_path: Path, is_pressed_before: bool) -> None:
    before = _pressed(without_limit=_step()) if is_pressed_before else _step()
    after = _pressed(without_limit=_step(Category.PARAMS, 50))
    path = tmp_path / "baseline.json"
    write_baseline(baseline_of(before), path)
    result = check(after, baseline=read_baseline(path), thresholds=[parse_threshold("footprint:+2%")])
    assert result.items == (
        Item(
            passed=False,
            sentence=f"{_TWO_KILOBYTES_MORE}; the limit is footprint:+2%; without what XLA"
            " recomputes under memory pressure",
        ),
    )
    assert result.footprint_bytes == 4000
    assert result.changes[0] == NamedChange(what="category", name="params", before_bytes=4000, after_bytes=6000)


def test_a_step_that_leaves_memory_pressure_is_compared_with_what_it_was_without() -> None:
    result = check(
        _step(), baseline=baseline_of(_pressed(without_limit=_step())), thresholds=[parse_threshold("footprint:+0%")]
    )
    assert (result.passed, result.changes) == (True, ())
    assert result.items[0].sentence.endswith("; without what XLA recomputes under memory pressure")


def test_a_baseline_without_the_plan_without_pressure_is_compared_as_it_is_and_that_is_said(tmp_path: Path) -> None:
    step, path = _pressed(without_limit=_step()), tmp_path / "baseline.json"
    write_baseline(baseline_of(replace(step, without_limit=None)), path)
    threshold = parse_threshold("footprint:+0%")
    (item,) = check(replace(step, without_limit=None), baseline=read_baseline(path), thresholds=[threshold]).items
    assert item == Item(
        passed=True,
        sentence="footprint went from 4,000 to 4,000 bytes (+0.00%); the limit is footprint:+0%; XLA recomputes values"
        " of the baseline's program under memory pressure, and no plan without that exists, so growth may be hidden",
    )
    old = json.loads(path.read_text())
    del old["pressure"]  # as versions before wrote it
    path.write_text(json.dumps(old))
    (item,) = check(step, baseline=read_baseline(path), thresholds=[threshold]).items
    assert item == Item(
        passed=True,
        sentence="footprint went from 4,000 to 4,000 bytes (+0.00%); the limit is footprint:+0%; XLA recomputes values"
        " under memory pressure, and this baseline has no footprint without that, so growth may be hidden: write it"
        " again with --update",
    )


def test_a_baseline_survives_a_round_trip_and_is_small(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write_baseline(baseline_of(_step()), path)
    assert read_baseline(path) == baseline_of(_step())
    assert path.stat().st_size < 10_000


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.update(footprint_bytes=-1),
        lambda found: found.update(footprint_bytes=found["footprint_bytes"] + 1),
        lambda found: found.update(footprint_bytes="1000"),
        lambda found: found["categories"].update(params=1.5),
        lambda found: found["modules"].update({"": 10**400}),
        lambda found: found.update(live_peak_bytes=True),
        lambda found: found.pop("buffers"),
        lambda found: found.update(pressure="high"),
    ],
    ids=["negative", "does not add up", "text", "half a byte", "huge", "no number", "missing", "other pressure"],
)
def test_a_baseline_of_other_types_or_sums_is_damaged(tmp_path: Path, change: Callable[[Any], object]) -> None:
    path = tmp_path / "baseline.json"
    write_baseline(baseline_of(_step()), path)
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))
    with pytest.raises(MemprofError, match=r"is a damaged baseline.*; write it again with --update"):
        read_baseline(path)


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (None, "there is no baseline"),
        ("not json", "is not a baseline"),
        ('{"schema": "memprof.baseline/9"}', "has schema 'memprof.baseline/9'"),
        ("[]", "has schema None"),
        ('{"schema": "memprof.baseline/1"}', "is a damaged baseline"),
        (f'{{"schema": "{"9" * 5000}"}}', r"has schema '9{200}\.\.\.', but"),
        ('{"schema": "\\u001b[31m"}', r"has schema '\\x1b\[31m', but"),
        ("[" * 100_000, "is not a baseline, or is damaged"),
        ("1" * 5000, "is not a baseline, or is damaged"),
    ],
)
def test_a_bad_baseline_is_one_sentence(tmp_path: Path, content: str | None, fragment: str) -> None:
    path = tmp_path / "baseline.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(MemprofError, match=fragment):
        read_baseline(path)


@pytest.mark.parametrize("text", ["footprint", "footprint:", "gradient:+2%", "footprint:-2%", "footprint:+2 bananas"])
def test_a_bad_threshold_is_one_sentence(text: str) -> None:
    with pytest.raises(MemprofError, match="is not a threshold"):
        parse_threshold(text)


def test_the_json_is_that_of_the_schema_and_the_document_leads_with_what_failed() -> None:
    result = check(
        _step(Category.ACTIVATIONS, 50),
        maxima=[Maximum(size_bytes=10**6, reason="--max 1MB")],
        baseline=baseline_of(_step()),
        thresholds=[parse_threshold("footprint:+1%")],
    )
    Draft202012Validator(_SCHEMA).validate(json.loads(render_object(check_json(result))))
    texts = [getattr(block, "text", "") for block in check_document(result, top=5).blocks]
    assert texts[0] == "1 of 2 checks failed"
    assert texts[1].startswith("footprint went from")


@pytest.mark.parametrize(
    "topology", [Topology(), topology_of({"fsdp": 4, "tp": 2}, 1), topology_of({"data": 16}, 2)], ids=str
)
def test_a_baseline_says_what_target_it_is_for(topology: Topology) -> None:
    target = resolve("l4", topology)
    found = target_of(baseline_of(replace(_step(), target=target)))
    assert found == replace(target, reason="that of the baseline")


def test_a_target_that_has_no_name_of_its_own_is_not_taken_from_a_baseline() -> None:
    assert target_of(baseline_of(replace(_step(), target=replace(resolve("l4"), name="NVIDIA X")))) is None


def test_a_step_is_not_judged_on_a_device_that_it_was_not_compiled_for() -> None:
    capture = added_up_step().capture()
    with pytest.raises(MemprofError, match=f"was compiled for {capture.target.name}, .* compile it for l4"):
        check_capture(capture, limits_of(fits="l4"))


def test_limits_are_read_from_what_the_user_wrote(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write_baseline(baseline_of(_step()), path)
    assert limits_of(maximum="1GiB").maxima == (Maximum(size_bytes=2**30, reason="--max 1GiB"),)
    assert limits_of(maximum="1GiB", fail_on=()).thresholds == ()
    assert limits_of(against=path).thresholds == (parse_threshold("footprint:+0%"),)
    assert limits_of(against=path, fail_on=["params:+1%"]).thresholds == (parse_threshold("params:+1%"),)
    assert limits_of(against=path).baseline == baseline_of(_step())
    assert limits_of(require_effect=True).require_effect
    with pytest.raises(MemprofError, match="limits the growth against a baseline"):
        limits_of(maximum="1GiB", fail_on=["params:+1%"])
    with pytest.raises(MemprofError, match="there is nothing to check"):
        limits_of()
    with pytest.raises(MemprofError, match="cpu has no fixed amount of memory"):
        limits_of(fits="cpu")


def test_techniques_must_show_only_where_that_is_asked_for() -> None:
    capture = replace(added_up_step().capture(), techniques=("bf16",))
    assert check_capture(capture, limits_of(maximum="1GiB")).passed
    assert not check_capture(capture, limits_of(require_effect=True)).passed  # no buffer is bf16
    with pytest.raises(MemprofError, match="has no techniques that could show"):
        check_capture(replace(capture, techniques=()), limits_of(require_effect=True))
    fits = check_capture(replace(capture, target=resolve("l4")), limits_of(fits="l4"))
    assert [item.passed for item in fits.items] == [True]


def test_a_file_that_is_no_baseline_is_replaced_only_by_force(tmp_path: Path) -> None:
    path, notes = tmp_path / "baseline.json", tmp_path / "notes.txt"
    capture = added_up_step().capture()
    check_replaceable(path, force=False)
    update_baseline(capture, path)
    check_replaceable(path, force=False)
    notes.write_text("dear diary")
    with pytest.raises(MemprofError, match="is not replaced, because memprof did not write it"):
        check_replaceable(notes, force=False)
    check_replaceable(notes, force=True)
    update_baseline(capture, tmp_path / "baseline.memprof")
    assert load_baseline(tmp_path / "baseline.memprof") == load_baseline(path) == baseline_of(analyze(capture))


@pytest.mark.parametrize(
    ("text", "share", "size_bytes"),
    [
        ("footprint:+2%", Fraction(2, 100), 0),
        ("live_peak:+0%", Fraction(0), 0),
        ("params:0", None, 0),
        ("params:+0B", None, 0),
        ("activations:+64MiB", None, 64 * 2**20),
    ],
)
def test_a_threshold_is_a_share_or_a_size(text: str, share: Fraction | None, size_bytes: int) -> None:
    found = parse_threshold(text)
    assert found == Threshold(what=text.partition(":")[0], text=text, share=share, size_bytes=size_bytes)
