"""What XLA recomputes under memory pressure is in the first lines and in the JSON of each command."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from made_compiles import Commands
from pressed_plans import FLOPS, plan, pressed

import memprof
from memprof.analysis.pipeline import analyze
from memprof.reports.json.runs import job_json
from memprof.reports.views.job import job_document
from memprof.sources.capture_file import write_capture
from memprof.studies.watch.job import Job

SENTENCE = (
    "XLA recomputes 1 value (537 MFLOP) to get under 7.50 MiB, JAX's pool; without that limit it would need 13.0 MiB"
)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Commands:
    write_capture(pressed("first.remat"), tmp_path / "pressed.memprof")
    write_capture(plan(), tmp_path / "free.memprof")
    return Commands(monkeypatch, capsys, tmp_path)


def _lines(text: str) -> str:
    """Text without line breaks, markup and escapes."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).replace("\\", "").split())


@pytest.mark.parametrize(
    ("arguments", "num_lines"),
    [
        (("show", "pressed.memprof"), 3),
        (("show", "pressed.memprof", "--full"), 4),
        (("advise", "pressed.memprof"), 3),
        (("check", "pressed.memprof", "--max", "1GiB"), 3),
        (("compare", "free.memprof", "pressed.memprof"), 3),
        (("show", "pressed.memprof", "--diff", "free.memprof"), None),
        (("show", "pressed.memprof", "--format", "html"), None),
        (("show", "pressed.memprof", "--format", "markdown"), None),
    ],
)
def test_the_sentence_stands_in_the_first_lines(
    command: Commands, arguments: tuple[str, ...], num_lines: int | None
) -> None:
    shown = command(*arguments, "--width", "200") if "--format" not in arguments else command(*arguments)
    lines = shown.stdout.splitlines()
    assert SENTENCE in _lines("\n".join(lines[:num_lines]))


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "pressed.memprof"),
        ("compare", "pressed.memprof", "free.memprof"),
        ("check", "pressed.memprof", "--max", "1GiB"),
        ("advise", "pressed.memprof"),
    ],
    ids=" ".join,
)
def test_the_json_has_the_record(command: Commands, arguments: tuple[str, ...]) -> None:
    found: Any = json.loads(re.sub("TIME", '"seconds": 0', command(*arguments, "--format", "json").stdout))
    rows = found.get("rows", [found])
    assert rows[0]["pressure"] == {
        "recomputed_values": 1,
        "recomputed_flops": FLOPS,
        "footprint_without_limit_bytes": analyze(plan()).footprint_bytes,
    }
    assert [row["pressure"] for row in rows[1:]] == [None] * len(rows[1:])


def test_a_watched_script_gets_it_for_its_largest_program() -> None:
    report = analyze(pressed("first.remat"))
    job = Job(label="train.py", programs=(), of_jax=(), moment=None, growth=(), not_followed={}, ending=None)
    found = job_json(job, exit_code=0, explanation=None, report=report).pressure
    assert found is not None
    assert (found.recomputed_values, found.recomputed_flops) == (1, FLOPS)
    assert job_json(job, exit_code=0, explanation=None).pressure is None
    assert len(job_document(job, top=5).blocks) == 2


def test_python_gets_it(command: Commands) -> None:
    profile = memprof.load(command.folder / "pressed.memprof")
    assert profile.pressure == profile.report.pressure is not None
    assert SENTENCE in _lines(str(profile))
    assert memprof.load(command.folder / "free.memprof").pressure is None
