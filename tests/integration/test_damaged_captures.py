"""A capture file that is no capture, or no longer one: one sentence, never a traceback, never a wrong report."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Callable

import pytest

from memprof.analysis.pipeline import analyze
from memprof.capture.capture_file import read_capture
from memprof.errors import MemprofError

MANIFEST, PROGRAM = "manifest.json", "program.hlo.pb"


@pytest.fixture
def parts(capture_path) -> dict[str, bytes]:
    """The files in a capture that is whole."""
    with zipfile.ZipFile(capture_path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(path, parts) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def with_manifest(parts: dict[str, bytes], change: Callable[[dict], object]) -> dict[str, bytes]:
    """The parts with a manifest that `change` has been at."""
    manifest = json.loads(parts[MANIFEST])
    change(manifest)
    return {**parts, MANIFEST: json.dumps(manifest).encode()}


def assert_refused(memprof, exit_code: int, *fragments: str) -> None:
    ended = memprof("show", "damaged.memprof")
    assert (ended.returncode, ended.stdout) == (exit_code, "")
    assert ended.stderr.startswith("memprof: ")
    assert ended.stderr.count("\n") == 1
    assert "Traceback" not in ended.stderr
    for fragment in fragments:
        assert fragment in ended.stderr


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_capture(memprof, capture_path, kept):
    content = capture_path.read_bytes()
    (memprof.folder / "damaged.memprof").write_bytes(content[: int(kept * len(content))])
    assert_refused(memprof, 2, "damaged.memprof is no capture, or a truncated one", "memprof run")


def test_another_kind_of_file(memprof):
    (memprof.folder / "damaged.memprof").write_text("categories: everything")
    assert_refused(memprof, 2, "damaged.memprof is no capture")


@pytest.mark.parametrize("missing", [MANIFEST, PROGRAM])
def test_another_kind_of_zip(memprof, parts, missing):
    pack(memprof.folder / "damaged.memprof", {name: parts[name] for name in parts if name != missing})
    assert_refused(memprof, 2, "damaged.memprof is no capture", missing)


def test_a_newer_schema(memprof, parts):
    newer = with_manifest(parts, lambda manifest: manifest.update(schema="memprof.capture/99"))
    pack(memprof.folder / "damaged.memprof", newer)
    assert_refused(memprof, 2, "memprof.capture/99", "newer memprof")


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.pop("compiler"),
        lambda manifest: manifest.update(arguments=3),
        lambda manifest: manifest["compiler"].update(temp_bytes="many"),
        lambda manifest: manifest["compiler"].update(temp_bytes=None),
        lambda manifest: manifest["arguments"][0].update(role="king"),
        lambda manifest: manifest.update(flops=1.5),
    ],
    ids=["a field is missing", "no list", "no number", "null", "no role", "no whole number"],
)
def test_a_manifest_of_another_shape(memprof, parts, change):
    pack(memprof.folder / "damaged.memprof", with_manifest(parts, change))
    assert_refused(memprof, 2, "damaged.memprof is a damaged capture")


@pytest.mark.parametrize("manifest", [b"", b"{", b"[]", b"null", b"\xff"])
def test_a_manifest_that_is_none(memprof, parts, manifest):
    pack(memprof.folder / "damaged.memprof", {**parts, MANIFEST: manifest})
    assert_refused(memprof, 2, "damaged.memprof is no capture")


def test_a_program_that_is_none(memprof, parts):
    pack(memprof.folder / "damaged.memprof", {**parts, PROGRAM: b"no proto at all"})
    assert_refused(memprof, 2, "program cannot be read")


@pytest.mark.parametrize("field", ["argument_bytes", "output_bytes", "temp_bytes"])
def test_totals_that_do_not_add_up(memprof, parts, field):
    def add_one(manifest):
        manifest["compiler"][field] += 1

    pack(memprof.folder / "damaged.memprof", with_manifest(parts, add_one))
    assert_refused(memprof, 70, "differs from the compiler's total")


def test_an_empty_program_does_not_pass_for_a_small_one(memprof, parts):
    pack(memprof.folder / "damaged.memprof", {**parts, PROGRAM: b""})
    assert_refused(memprof, 70, "the capture's proto is no compiled HLO module")


def test_whatever_byte_is_wrong_there_is_an_error_or_the_same_report(tmp_path, capture_path):
    """The zip has a checksum for what is in it; what describes the zip itself has none, and can be wrong in any way."""
    content, report = capture_path.read_bytes(), analyze(read_capture(capture_path))
    rng = random.Random(0)
    ends = [*range(80), *range(len(content) - 240, len(content))]  # where the zip describes itself
    damaged = tmp_path / "damaged.memprof"
    for place in [*ends, *rng.sample(range(len(content)), 60)]:
        changed = bytearray(content)
        changed[place] ^= 1 << rng.randrange(8)
        damaged.write_bytes(changed)
        try:
            found = analyze(read_capture(damaged))
        except MemprofError:
            continue
        assert (found.categories, found.buffers) == (report.categories, report.buffers)
