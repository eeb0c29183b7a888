"""A capture with a fault in it has three ends: the same report, a refusal in one sentence, and nothing else.

What was made on purpose, with digests that are right, may also be a capture of something else; then its report is one,
and it can be shown.
"""

from __future__ import annotations

import io
import random
import subprocess
import sys
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hlo import Step
from hlo_nodes import BACKWARD, FORWARD, PLAIN, array, f32
from measurements import CPU_RUN
from mutants import PROGRAM, mutants, seal

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Role
from memprof.analysis.records.report import Report
from memprof.errors import InternalError, MemprofError
from memprof.reports.format import format_named
from memprof.reports.options import RenderOptions
from memprof.sources.capture_file import read_capture, write_capture

NUM_MUTANTS = 2700
V = f32(4)
FORMATS = ("terminal", "json", "html", "csv")


def step() -> Step:
    """A step with everything that the analysis follows: a loop, a branch, a fusion, a library call, a stack trace."""
    step = Step()
    line = step.frame("model.py", 12, caller=step.frame("train.py", 3))
    w = step.argument("state.params['a']['w']", Role.PARAMS, V, donated=True)
    m = step.argument("state.opt.m['a']['w']", Role.OPTIMIZER_STATE, V, donated=True)
    x = step.argument("x", Role.BATCH, V)
    fused = step.computation("fused", fused=True)
    a, b = fused.parameter(V), fused.parameter(V)
    fused.op("f.mul", "multiply", V, [a, b], "jit(step)/jvp(Net)/a/mul", frame=line)
    h = step.op("h", "fusion", V, [w, x], "jit(step)/jvp(Net)/a/mul", called=[fused], frame=line)
    branch, other = step.computation("branch"), step.computation("other")
    for computation in (branch, other):
        computation.op(f"{computation.name}.exp", "exponential", V, [computation.parameter(V)], FORWARD)
    which = step.op("which", "constant", array("s32"))
    t = step.op("t", "conditional", V, [which, h, h], FORWARD, called=[branch, other])
    body, condition = step.computation("body"), step.computation("condition")
    loop = step.op("loop", "while", step.tuple(t, x).shape, [step.root], FORWARD, called=[body, condition])
    of_condition, carried = condition.parameter(loop.shape), body.parameter(loop.shape)
    condition.op("less", "compare", array("pred"), [condition.element(of_condition, 0)])
    first = body.element(carried, 0)
    body.tuple(body.op("b.tanh", "tanh", V, [first], FORWARD), body.element(carried, 1))
    call = step.op("gemm", "custom-call", V, [step.element(loop, 0), h], BACKWARD, target="__cublas$gemm")
    dw = step.op("dw", "copy", V, [call], BACKWARD)
    step.free(h, after=dw)
    new_m = step.op("new_m", "add", V, [m, dw], PLAIN, shares=m)
    step.result(step.op("new_w", "subtract", V, [w, new_m], PLAIN, shares=w), new_m)
    return step


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "step.memprof"
    write_capture(replace(step().capture(), measured=CPU_RUN, source_lines={"model.py": {12: "x = w * x"}}), path)
    return path.read_bytes()


def _report(path: Path) -> Report:
    return replace(analyze(read_capture(path)), analysis_seconds=0.0)


def _check_refusal(error: MemprofError) -> None:
    assert not isinstance(error, InternalError)  # exit code 2, not 70
    text = str(error)
    assert text.isprintable()  # one line, and nothing that would steer a terminal
    assert len(text) < 1000
    assert "damaged" in text or "has schema" in text


def test_a_capture_with_a_fault_gives_the_same_report_or_one_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "step.memprof"
    path.write_bytes(content)
    whole = _report(path)
    ends: Counter[str] = Counter()
    for mutant in mutants(content, random.Random(13), NUM_MUTANTS):
        path.write_bytes(mutant.content)
        try:
            found = _report(path)
        except MemprofError as error:
            _check_refusal(error)
            ends["refused"] += 1
            continue
        if found == whole:
            ends["same"] += 1
        else:
            assert mutant.is_sealed, mutant.kind
            assert sum(found.categories.values()) == found.footprint_bytes
            text = format_named(FORMATS[ends["other"] % len(FORMATS)]).render_report(found, RenderOptions(width=100))
            assert "\x1b" not in str(text)
            ends["other"] += 1
    # Each end is met, so that each of the three was looked at.
    assert ends.total() == NUM_MUTANTS
    assert min(ends[end] for end in ("refused", "same", "other")) > NUM_MUTANTS // 100


# What is made to take memory or time, each read by a process that may have 1 GiB and 10 seconds.
_READ = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
from pathlib import Path
from memprof.analysis.pipeline import analyze
from memprof.sources.capture_file import read_capture
from memprof.errors import MemprofError
for path in sys.argv[1:]:
    try:
        analyze(read_capture(Path(path)))
    except MemprofError as error:
        print(error)
"""


def _field(number: int, content: bytes) -> bytes:
    size, length = b"", len(content)
    while length > 0x7F:
        size, length = size + bytes([length & 0x7F | 0x80]), length >> 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + content


def test_what_is_made_to_fill_memory_is_refused_before_it_does(content: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    # Parts that take a hundred times their size when they are parsed, beside noise that lets them expand so far.
    noise = random.Random(0).randbytes(400_000)
    instructions = _field(1, _field(3, _field(2, b"") * 10_000_000) + _field(15, noise))
    bombs = {
        "zeros": seal({**parts, PROGRAM: bytes(200 << 20)}),
        "instructions": seal({**parts, PROGRAM: instructions}),
        "lists": seal({**parts, "manifest.json": b"[" * (15 << 20)}),
        "long": seal({**parts, "manifest.json": b"[" + b"[],\n" * (4 << 20) + b"0]"}),
        "nested": seal({**parts, PROGRAM: _nested(500)}),
    }
    paths = [tmp_path / f"{name}.memprof" for name in bombs]
    for path, bomb in zip(paths, bombs.values(), strict=True):
        path.write_bytes(bomb)
    ended = subprocess.run([sys.executable, "-c", _READ, *paths], capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert len(lines) == len(bombs)
    assert all("damaged" in line for line in lines), lines


def _nested(depth: int) -> bytes:
    """A shape in a shape in a shape."""
    shape = b""
    for _ in range(depth):
        shape = _field(4, shape)
    return _field(1, _field(3, _field(2, _field(3, shape))))
