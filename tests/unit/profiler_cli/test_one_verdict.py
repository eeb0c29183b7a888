"""Whoever asks whether a step fits gets one answer: the same sentence and the same fields, however it is asked."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from made_compiles import Commands, Ended, made_capture

import memprof
from memprof.analysis.memory.verdict import judge
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.pool import PoolSettings, Verdict
from memprof.errors import MemprofError
from memprof.reports.json.runs import job_json
from memprof.sources.capture_file import read_capture, write_capture
from memprof.sources.jax.targets.resolve import resolve
from memprof.studies.check.gate import check_capture, limits_of
from memprof.studies.watch.job import Job

# Of a card of 84,929,347,584 bytes these are 8,492: less than the step takes, so that it fits with a larger share.
TINY_SHARE = "0.0000001"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_capture(made_capture(), tmp_path / "one.memprof")
    write_capture(made_capture(num_layers=5), tmp_path / "two.memprof")
    (tmp_path / "run.log").write_text("Out of memory while trying to allocate 8192 bytes.\n")
    return tmp_path


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> Commands:
    return Commands(monkeypatch, capsys, folder)


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Verdict:
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", TINY_SHARE)
    found = analyze(read_capture(folder / "one.memprof")).verdict
    assert found.sentence.startswith("fits with XLA_CLIENT_MEM_FRACTION=.01: footprint ")
    assert (found.answer, found.pool_bytes, found.mem_fraction) == ("fits_with", 8492, 0.01)
    return found


def _fields(verdict: Verdict) -> dict[str, Any]:
    return {
        "answer": verdict.answer.value,
        "pool_bytes": verdict.pool_bytes,
        "mem_fraction": verdict.mem_fraction,
        "short_bytes": verdict.short_bytes,
    }


def _json(ended: Ended) -> Any:
    return json.loads(re.sub("TIME", '"seconds": 0', ended.stdout))


def _words(text: str) -> str:
    """Text without line breaks, markup and escapes."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).replace("\\", "").replace("`", "").split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "one.memprof", "two.memprof", "--width", "400"),
        ("check", "one.memprof", "--max", "1GiB", "--width", "400"),
        ("advise", "one.memprof", "--width", "400"),
        ("explain", "run.log", "--program", "one.memprof", "--width", "400"),
        ("show", "one.memprof", "--full", "--width", "400"),
        ("show", "one.memprof", "--format", "html"),
        ("show", "one.memprof", "--format", "markdown"),
    ],
    ids=" ".join,
)
def test_the_sentence_is_the_same(command: Commands, verdict: Verdict, arguments: tuple[str, ...]) -> None:
    assert verdict.sentence in _words(command(*arguments).stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "one.memprof"),
        ("compare", "one.memprof", "two.memprof"),
        ("check", "one.memprof", "--max", "1GiB"),
        ("advise", "one.memprof"),
        ("explain", "run.log", "--program", "one.memprof"),
    ],
    ids=" ".join,
)
def test_the_fields_are_the_same(command: Commands, verdict: Verdict, arguments: tuple[str, ...]) -> None:
    found = _json(command(*arguments, "--format", "json"))
    found = found["rows"][0] if arguments[0] == "compare" else found
    assert found["verdict"] == _fields(verdict)
    assert found.get("fits", False) is False


def test_python_gets_the_same(verdict: Verdict, folder: Path) -> None:
    profile = memprof.load(folder / "one.memprof")
    assert (profile.verdict, profile.fits, memprof.fits(profile)) == (verdict, False, False)
    assert profile.to_dict()["verdict"] == _fields(verdict)
    assert verdict.sentence in _words(str(profile))
    assert verdict.sentence in _words(profile._repr_html_())
    assert memprof.fits(profile, pool=0.9)
    assert memprof.load(folder / "one.memprof", pool="90%").fits
    with pytest.raises(MemprofError, match=r"pool=1.5 is not a share of the card's memory"):
        memprof.fits(profile, pool=1.5)


def test_tests_and_watched_scripts_get_the_same(verdict: Verdict, folder: Path) -> None:
    checked = check_capture(read_capture(folder / "one.memprof"), limits_of(fits="h100-80gb"))
    assert [item.sentence.partition(":")[0] for item in checked.items] == [verdict.sentence.partition(":")[0]]
    job = Job(label="train.py", programs=(), of_jax=(), moment=None, growth=(), not_followed={}, ending=None)
    report = analyze(read_capture(folder / "one.memprof"))
    found = job_json(job, exit_code=0, explanation=None, report=report).verdict
    assert found is not None
    assert (found.answer, found.pool_bytes, found.mem_fraction, found.short_bytes) == tuple(_fields(verdict).values())


def test_an_option_overrides_the_environment(command: Commands, verdict: Verdict) -> None:
    shown = _words(command("show", "one.memprof", "--pool", "0.9", "--width", "400").stdout)
    assert "of JAX's pool of 71.2 GiB (90% of h100-80gb's 79.1 GiB, --pool 0.9)" in shown
    assert verdict.sentence not in shown


def test_a_check_judges_the_device_that_it_names(command: Commands, verdict: Verdict, folder: Path) -> None:
    profile, named = memprof.load(folder / "one.memprof"), resolve("h100-80gb")
    expected = judge(profile.report.pieces, named, profile.report.pool)
    assert (expected.answer, expected.pool_bytes) == (verdict.answer, 8494)  # of 84,942,979,072 bytes
    found = _json(command("check", "one.memprof", "--fits", "h100-80gb", "--format", "json"))
    assert (found["passed"], found["verdict"]) == (False, _fields(expected))
    assert found["items"] == [{"passed": False, "sentence": expected.sentence}]
    ended = command("check", "one.memprof", "--fits", "h100-80gb", "--pool", "0.9", "--width", "400")
    assert ended.code == 0
    assert "--pool 0.9" in ended.stdout


def test_settings_of_the_program_count_unless_the_environment_has_some(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = PoolSettings(mem_fraction=0.5, origin="XLA_CLIENT_MEM_FRACTION=.5")
    write_capture(replace(made_capture(), pool=own), folder / "own.memprof")
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    assert read_capture(folder / "own.memprof").pool == own
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.8")
    assert read_capture(folder / "own.memprof").pool.mem_fraction == 0.8


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"XLA_CLIENT_MEM_FRACTION": ".9", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"},
            "XLA_CLIENT_MEM_FRACTION and XLA_PYTHON_CLIENT_MEM_FRACTION are both set",
        ),
        ({"XLA_CLIENT_MEM_FRACTION": "most"}, "XLA_CLIENT_MEM_FRACTION=most is not a share"),
        ({"XLA_CLIENT_MEM_FRACTION": "-1"}, "XLA_CLIENT_MEM_FRACTION=-1 is not a share"),
        ({"XLA_CLIENT_MEM_FRACTION": "nan"}, "XLA_CLIENT_MEM_FRACTION=nan is not a share"),
        (
            {"XLA_PYTHON_CLIENT_ALLOCATOR": "bcf"},
            "There is no allocator that XLA_PYTHON_CLIENT_ALLOCATOR can",
        ),
    ],
)
def test_settings_that_jax_refuses_are_one_sentence(
    command: Commands, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], message: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ended = command("show", "one.memprof")
    assert (ended.code, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert message in ended.stderr


def test_fit_searches_within_the_pool_and_names_what_a_larger_one_holds(command: Commands) -> None:
    found = _json(command("fit", "mlp", "--memory", "10GiB", "--format", "json", "--no-save"))
    assert found["budget_bytes"] == found["verdict"]["pool_bytes"] == 15 << 29
    needed = {each["value"]: each["needed_bytes"] for each in found["tried"]}
    # The next one fits by its sum, but not beside the batch before it.
    assert found["next_footprint_bytes"] < found["budget_bytes"] < needed[found["next_value"]]
    assert needed[found["value"]] <= found["budget_bytes"]
    assert found["verdict"]["answer"] == "fits"
    assert found["larger"]["value"] > found["value"]
    assert found["larger"]["footprint_bytes"] > found["footprint_bytes"]
    assert found["larger"]["mem_fraction"] > 0.75
    chosen = _json(command("fit", "mlp", "--memory", "10GiB", "--pool", "0.5", "--format", "json", "--no-save"))
    assert (chosen["budget_bytes"], chosen["larger"]) == (5 << 30, None)  # a pool that was asked for stays
    text = command("fit", "mlp", "--memory", "10GiB", "--no-save", "--width", "400").stdout
    assert f"batch_size={found['value']} fits: footprint " in text
    assert f"batch_size={found['larger']['value']} fits: " in text
