"""Captures that are damaged, or that somebody made to do harm, as the command line meets them.

What reading says of each kind of damage is in `unit/sources/test_capture_file.py`, thousands of others in
`property/test_damage_laws.py`.
"""

from __future__ import annotations

import json
import os
import random
import zipfile
from collections.abc import Callable
from dataclasses import replace

import pytest
from mutants import MANIFEST, PROGRAM, mutants, seal

from memprof.analysis.hlo.hlo_proto import HloProto
from memprof.analysis.pipeline import analyze
from memprof.errors import MemprofError
from memprof.sources.capture_file import read_capture

pytestmark = pytest.mark.with_one_jax

Parts = dict[str, bytes]


@pytest.fixture
def parts(capture_path) -> Parts:
    """The files in a capture that is whole."""
    with zipfile.ZipFile(capture_path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def with_manifest(parts: Parts, change: Callable[[dict], object]) -> Parts:
    """The parts with a manifest that `change` has been at."""
    manifest = json.loads(parts[MANIFEST])
    change(manifest)
    return {**parts, MANIFEST: json.dumps(manifest).encode()}


def without_trace(parts: Parts) -> Parts:
    """The parts with a program whose heap trace is gone, as nothing but the totals of the replay can tell on a CPU."""
    proto = HloProto.FromString(parts[PROGRAM])
    del proto.buffer_assignment.heap_simulator_traces[:]
    return {**parts, PROGRAM: proto.SerializeToString()}


def assert_refused(memprof, *fragments: str, arguments: tuple[str, ...] = ("show", "damaged.memprof")) -> None:
    ended = memprof(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("memprof: ")
    assert ended.stderr.count("\n") == 1
    assert ended.stderr[:-1].isprintable()
    for fragment in fragments:
        assert fragment in ended.stderr


def test_a_truncated_capture(memprof, capture_path):
    content = capture_path.read_bytes()
    (memprof.folder / "damaged.memprof").write_bytes(content[: len(content) // 2])
    assert_refused(memprof, "damaged.memprof is not a capture, or is damaged", "memprof run")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda parts: {**parts, PROGRAM: b"no proto at all"}, "program cannot be read"),
        (lambda parts: {**parts, PROGRAM: b""}, "the capture's proto is not a compiled HLO module"),
        (without_trace, "replaying the heap traces gives another total"),
        (
            lambda parts: with_manifest(parts, lambda manifest: manifest["compiler"].update(temp_bytes=1)),
            "differs from the compiler's total",
        ),
        (
            lambda parts: with_manifest(parts, lambda manifest: manifest["arguments"][0].update(role="\x1b[31mking")),
            "x1b[31mking'",
        ),
    ],
    ids=["no proto", "empty", "no heap trace", "other totals", "an escape sequence"],
)
def test_what_does_not_add_up_is_damaged_and_no_defect_of_memprof(memprof, parts, make, sentence):
    (memprof.folder / "damaged.memprof").write_bytes(seal(make(parts)))
    assert_refused(memprof, "damaged", sentence)


def test_a_pipe_is_not_waited_for(memprof):
    os.mkfifo(memprof.folder / "pipe.memprof")
    assert_refused(memprof, "is a device, a pipe or the like", arguments=("compare", "pipe.memprof", "pipe.memprof"))


def test_a_report_shows_no_file_of_this_machine_and_no_escape_sequence(memprof, parts):
    """A capture names files and holds texts. Its reader's files are not opened for it, nor is the terminal steered."""
    secret = memprof.folder / "secret.py"
    secret.write_text("password = 'open sesame'\n" * 100)

    def change(manifest):
        manifest.update(label="\x1b]0;title\x07 label", source_lines={})

    proto = HloProto.FromString(parts[PROGRAM])
    names = proto.hlo_module.stack_frame_index.file_names
    names[:] = [str(secret)] * len(names)
    hostile = seal(with_manifest({**parts, PROGRAM: proto.SerializeToString()}, change))
    (memprof.folder / "hostile.memprof").write_bytes(hostile)
    shown = memprof("show", "hostile.memprof")
    assert (shown.returncode, "\x1b" in shown.stdout) == (0, False)
    assert r"\x1b]0;title\x07 label" in shown.stdout
    page = memprof("show", "hostile.memprof", "--format", "html").stdout
    assert "secret.py" in page
    assert "sesame" not in page


def test_whatever_byte_is_wrong_there_is_an_error_or_the_same_report(tmp_path, capture_path):
    """The same laws as of a small program by hand, of one that XLA has compiled."""
    content, damaged = capture_path.read_bytes(), tmp_path / "damaged.memprof"
    report = replace(analyze(read_capture(capture_path)), analysis_seconds=0.0)
    for mutant in mutants(content, random.Random(0), 90):
        damaged.write_bytes(mutant.content)
        try:
            found = replace(analyze(read_capture(damaged)), analysis_seconds=0.0)
        except MemprofError:
            continue
        assert mutant.is_sealed or found == report
