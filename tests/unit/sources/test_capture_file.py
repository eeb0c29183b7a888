"""The capture file: what it holds, what damage is told from what, and that writing it is all or nothing."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import zipfile
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hlo import Step
from hlo_nodes import FORWARD, f32
from measurements import CPU_RUN, GPU_RUN

from memprof.analysis.memory.checks import replay_totals, totals_of
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Role
from memprof.errors import MemprofError
from memprof.files import IfTaken, check_writable
from memprof.sources import capture_file
from memprof.sources.capture_file import read_capture, without_source, write_capture
from memprof.sources.jax.xla.plan import decode_plan, read_plan
from memprof.untrusted import quote


def _capture(**changes: Any) -> Capture:
    step = Step()
    w = step.argument("params['w']", Role.PARAMS, f32(4), donated=True)
    x = step.argument("x", Role.BATCH, f32(4))
    step.result(step.op("y", "multiply", f32(4), [w, x], FORWARD))
    return replace(step.capture(), **changes)


def _replayed(capture: Capture) -> Capture:
    """The capture with what writing adds to one that no compiler made."""
    return replace(capture, replay=replay_totals(capture.hlo_proto, capture.target.platform))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "step.memprof"


@pytest.fixture
def written(path: Path) -> Path:
    write_capture(_capture(), path)
    return path


def _sentence(path: Path) -> str:
    """What reading says: one line, without a traceback of ours."""
    with pytest.raises(MemprofError) as caught:
        read_capture(path)
    assert type(caught.value) is MemprofError
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What it holds


def test_what_is_read_is_what_was_written(written: Path) -> None:
    assert read_capture(written) == _replayed(_capture())
    assert read_capture(written).file == str(written)


def test_it_is_a_zip_of_a_json_manifest_and_the_program_as_xla_wrote_it(written: Path) -> None:
    with zipfile.ZipFile(written) as archive:
        assert archive.namelist() == ["manifest.json", "program.hlo.pb", "SHA256SUMS"]
        assert archive.read("program.hlo.pb") == _capture().hlo_proto
        manifest = json.loads(archive.read("manifest.json"))
        sums = archive.read("SHA256SUMS").decode().splitlines()
        assert sums == [f"{hashlib.sha256(archive.read(n)).hexdigest()}  {n}" for n in archive.namelist()[:2]]
    assert manifest["schema"] == "memprof.capture/2"
    assert set(manifest) == {"schema", *Capture.__dataclass_fields__} - {
        *("hlo_proto", "proto_without_limit", "trace", "file"),
    }
    assert manifest["arguments"][0] == {
        "path": "params['w']",
        "role": "params",
        "shape": [4],
        "dtype": "float32",
        "size_bytes": 16,
        "donated": True,
        "parameter_number": 0,
        "position": None,
        "mesh_axes": None,
        "num_copies": 1,
        "window": [],
        "is_carried": None,
    }


@pytest.mark.parametrize(
    ("label", "read"),
    [
        ("größer \u2192 kleiner", "größer \u2192 kleiner"),
        ("\N{WOMAN}\u200d\N{ROCKET}", "\N{WOMAN}\u200d\N{ROCKET}"),
        ("a\nb", "a\\nb"),
        ("\ud800 not a character", "\\ud800 not a character"),
        ("\x1b]0;title\x07 \x9b31m \u202e", "\\x1b]0;title\\x07 \\x9b31m \\u202e"),
    ],
)
def test_text_survives_and_what_would_steer_a_terminal_is_shown_as_an_escape(path: Path, label: str, read: str) -> None:
    lines = {"f.py": {3: label}}
    config, doubts = {label: label}, (label,)
    write_capture(_capture(label=label, config=config, doubts=doubts, source_lines=lines), path)
    found = read_capture(path)
    assert (found.label, found.config, found.doubts) == (read, {read: read}, (read,))
    assert found.source_lines == {"f.py": {3: read}}


def test_numbers_that_json_writes_without_a_point_are_still_floats(written: Path) -> None:
    _edit(written, lambda manifest: manifest["timings"].update(lower_seconds=2))
    assert repr(read_capture(written).timings.lower_seconds) == "2.0"


def test_what_a_later_version_adds_to_the_manifest_is_skipped(written: Path) -> None:
    _edit(written, lambda manifest: manifest.update(more=[1, 2, 3], file="/etc/passwd"))
    assert read_capture(written) == _replayed(_capture())
    assert read_capture(written).file == str(written)


def test_a_measurement_survives(path: Path) -> None:
    for measured in (GPU_RUN, CPU_RUN):
        path.unlink(missing_ok=True)
        write_capture(_capture(measured=measured), path)
        assert read_capture(path).measured == measured


def test_losses_that_are_no_numbers_survive(path: Path) -> None:
    write_capture(_capture(measured=replace(CPU_RUN, losses=(1.5, float("nan"), float("inf")))), path)
    measured = read_capture(path).measured
    assert measured is not None
    assert repr(measured.losses) == "(1.5, nan, inf)"


# Damage


def test_a_file_cut_off_anywhere_is_told_from_a_capture(written: Path) -> None:
    data = written.read_bytes()
    for length in range(0, len(data), 11):
        written.write_bytes(data[:length])
        assert re.search("is not a capture, or is damaged: .*; make it again with `memprof run`", _sentence(written))
    written.write_bytes(data[:-1])
    assert "is not a capture, or is damaged" in _sentence(written)


def test_a_file_with_a_wrong_byte_anywhere_is_whole_or_told_so(written: Path) -> None:
    data, whole = written.read_bytes(), _replayed(_capture())
    for place, damage in zip(range(0, len(data), 2), cycle([0x01, 0x80, 0xFF])):
        changed = bytearray(data)
        changed[place] ^= damage
        written.write_bytes(changed)
        try:
            found: Capture | str = read_capture(written)
        except MemprofError as error:
            found = str(error)
        # Some bytes no reader needs: those of time stamps, say.
        assert found == whole if isinstance(found, Capture) else "\n" not in found


@pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\x03\x04", b"\x00" * 1000])
def test_a_file_that_is_no_zip(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert _sentence(path).startswith(f"{path} is not a capture, or is damaged: ")


@pytest.mark.parametrize("kept", ["manifest.json", "program.hlo.pb", "something else"])
def test_a_zip_with_a_part_missing(path: Path, kept: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(kept, '{"schema": "memprof.capture/2"}')
    assert _sentence(path).startswith(f"{path} is not a capture, or is damaged: ")


@pytest.mark.parametrize("text", [b"{", b"", b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b'"\x1b[31m'])
def test_a_manifest_that_is_no_json(path: Path, text: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", text)
        archive.writestr("program.hlo.pb", b"")
    assert _sentence(path).startswith(f"{path} is not a capture, or is damaged: ")


def _pack(path: Path, manifest: bytes, program: bytes, sums: bytes | None = None) -> None:
    """A capture file with these members. Unless they are given, the digests are right: what is odd was made so."""
    members = {"manifest.json": manifest, "program.hlo.pb": program}
    digests = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in members.items())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr("SHA256SUMS", digests if sums is None else sums)


def _edit(path: Path, change: Any) -> None:
    """Change the manifest of a capture file, and the digests with it."""
    with zipfile.ZipFile(path) as archive:
        manifest, program = json.loads(archive.read("manifest.json")), archive.read("program.hlo.pb")
    changed = change(manifest)
    _pack(path, json.dumps(manifest if changed is None else changed).encode(), program)


@pytest.mark.parametrize(
    ("member", "was", "becomes"),
    [
        ("manifest.json", b'"flops": 1000', b'"flops": 1001'),
        ("program.hlo.pb", b"multiply", b"subtract"),
        ("SHA256SUMS", b"manifest", b"manifesT"),
    ],
)
def test_content_that_was_changed_afterwards_is_damage(written: Path, member: str, was: bytes, becomes: bytes) -> None:
    with zipfile.ZipFile(written) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    assert was in parts[member]
    parts[member] = parts[member].replace(was, becomes)
    _pack(written, *parts.values())
    assert "its content does not match its digests" in _sentence(written)


def _changed_zip(path: Path, kind: str) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    packing = {"packed": zipfile.ZIP_LZMA}.get(kind, zipfile.ZIP_DEFLATED)
    if kind == "expands":
        parts["program.hlo.pb"] = bytes(64 << 20)
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
        if kind == "more":
            archive.writestr("more", b"")
        if kind == "twice":
            with pytest.warns(UserWarning, match="Duplicate name"):
                archive.writestr("manifest.json", parts["manifest.json"])
        if kind == "comment":
            archive.comment = b"\x1b[31m"
        if kind == "directory":
            for number in range(1000):
                archive.writestr(str(number), b"")


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("packed", "manifest.json is compressed in a way that memprof does not use"),
        ("expands", "program.hlo.pb expands to 67,108,864 bytes, but the maximum is "),
        ("more", "it must contain only manifest.json, program.hlo.pb or trace.json, and SHA256SUMS"),
        ("twice", "it has 2 members called manifest.json"),
        ("comment", "the end of a capture is missing"),
        ("directory", "the end of a capture is missing"),
    ],
)
def test_a_zip_that_memprof_does_not_write(written: Path, kind: str, sentence: str) -> None:
    _changed_zip(written, kind)
    assert f"is not a capture, or is damaged: {sentence}" in _sentence(written)


@pytest.mark.parametrize("name", ["/dev/zero", "pipe"])
def test_what_is_no_regular_file_is_not_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name  # an absolute name stays as it is
    if name == "pipe":
        os.mkfifo(path)
    assert _sentence(path) == f"{path} is a device, a pipe or the like; give a regular file"


@pytest.mark.parametrize("schema", ["memprof.report/1", "memprof.capture", "memprof.capture/²", "", None, 1, ["a"]])
def test_a_manifest_of_something_else(written: Path, schema: Any) -> None:
    _edit(written, lambda manifest: manifest.update(schema=schema))
    assert f"is not a capture, or is damaged: its manifest says schema {quote(schema)}, not" in _sentence(written)


@pytest.mark.parametrize("manifest", [[], "memprof.capture/2", 7, None])
def test_a_manifest_that_is_no_object(written: Path, manifest: Any) -> None:
    _pack(written, json.dumps(manifest).encode(), b"")
    assert "is not a capture, or is damaged: its manifest says schema None" in _sentence(written)


@pytest.mark.parametrize("version", [3, 10])
def test_a_newer_schema_asks_for_a_newer_memprof(written: Path, version: int) -> None:
    _edit(written, lambda manifest: manifest.update(schema=f"memprof.capture/{version}"))
    assert _sentence(written) == (
        f"{written} has schema 'memprof.capture/{version}', but this memprof reads memprof.capture/2: a newer memprof"
        " wrote it (`pip install --upgrade jax-memprof`), or it is damaged"
    )


def test_a_schema_of_many_digits_is_quoted_on_one_line(written: Path) -> None:
    _edit(written, lambda manifest: manifest.update(schema=f"memprof.capture/{'9' * 5000}"))
    assert len(_sentence(written)) < 500


def test_a_capture_of_the_first_schema_is_to_be_made_again(written: Path) -> None:
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("manifest.json", '{"schema": "memprof.capture/1"}')
        archive.writestr("program.hlo.pb", b"")
    assert _sentence(written) == (
        f"{written} has schema memprof.capture/1, which has no digests to detect damage and is no"
        " longer read; make it again with `memprof run`"
    )


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("label", 7),
        ("label", None),
        ("techniques", "baseline"),  # a string is a sequence too
        ("techniques", {"baseline": 1}),
        ("techniques", [1]),
        ("config", ["a"]),
        ("config", {"a": [1]}),
        ("config", "ab"),
        ("target", "cpu"),
        ("target", None),
        ("target.memory_bytes", "80"),
        ("target.memory_bytes", 1.5),
        ("compiler.argument_bytes", None),
        ("compiler.argument_bytes", True),
        ("flops", "12"),
        ("timings.lower_seconds", "1.5"),
        ("timings.lower_seconds", True),
        ("arguments", {"path": "x"}),
        ("arguments.0", "x"),
        ("arguments.0.role", "weights"),
        ("arguments.0.role", 1),
        ("arguments.0.donated", "no"),
        ("arguments.0.donated", 1),
        ("arguments.0.shape", "44"),
        ("arguments.0.shape", [1.0]),
        ("arguments.0.shape", [-1]),
        ("arguments.0.shape", [1] * 65),
        ("arguments.0.shape", [2**62, 2**62]),
        ("arguments.0.size_bytes", 2**63),
        ("arguments.0.parameter_number", 1),  # that of the other one
        ("compiler.argument_bytes", -1),
        ("flops", -1),
        ("flops", 1e300),
        ("timings.lower_seconds", float("nan")),
        ("timings.lower_seconds", float("inf")),
        ("target.memory_bytes", 0),
        ("label", "x" * 5000),
        ("replay", None),
        ("source_lines", {"f.py": {"first": ""}}),
        ("source_lines", {"f.py": {"0": ""}}),
    ],
)
def test_a_value_of_a_wrong_type(written: Path, place: str, value: Any) -> None:
    def change(manifest: Any) -> None:
        *parents, last = [int(key) if key.isdecimal() else key for key in place.split(".")]
        for key in parents:
            manifest = manifest[key]
        manifest[last] = value

    _edit(written, change)
    assert re.fullmatch(
        rf"{re.escape(str(written))} is not a capture, or is damaged: its manifest .*; make it again with .*",
        _sentence(written),
    )


@pytest.mark.parametrize("name", ["label", "config", "target", "arguments", "flops"])
def test_a_value_that_is_missing(written: Path, name: str) -> None:
    _edit(written, lambda manifest: manifest.pop(name) and None)
    assert f"does not fit schema 2 (Object missing required field `{name}`)" in _sentence(written)


def test_a_file_that_is_not_there(path: Path) -> None:
    assert _sentence(path) == f"there is no file {path}; `memprof run` writes captures (*.memprof)"


def test_a_folder_is_no_capture(tmp_path: Path) -> None:
    assert _sentence(tmp_path) == f"{tmp_path} is a folder; give a capture (*.memprof)"


def test_a_file_that_must_not_be_read(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(zipfile, "ZipFile", refuse)  # root reads every file
    assert _sentence(written) == f"{written} cannot be read: Permission denied"


# Writing


def test_what_is_cut_short_on_its_way_to_the_disk_gets_no_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file size limit can cut a file without an error that Python sees."""
    monkeypatch.setattr(os, "fsync", lambda number: os.ftruncate(number, 300))
    with pytest.raises(MemprofError, match=r"the capture cannot be written to .*: the end of a capture is missing"):
        write_capture(_capture(), path)
    assert list(path.parent.iterdir()) == []


def test_a_dump_that_was_cut_short_is_told_before_anything_is_made_of_it(tmp_path: Path) -> None:
    """XLA says nothing when the disk is full while it writes its dump."""
    program, dump = _capture().hlo_proto, tmp_path / "module_0001.jit_step.cpu_after_optimizations.hlo.pb"
    for length in range(1, len(program)):
        dump.write_bytes(program[:length])
        with pytest.raises(MemprofError) as caught:
            decode_plan(read_plan(tmp_path), "cuda")
        assert type(caught.value) is MemprofError
        assert f"is cut short after {length:,} bytes" in str(caught.value)
    dump.write_bytes(program)
    plan = read_plan(tmp_path)
    table = decode_plan(plan, "cuda").table
    assert plan.hlo_proto == program
    assert totals_of(table) == replay_totals(program, "cuda")


def test_the_text_of_source_lines_can_be_left_out(path: Path) -> None:
    capture = _capture(source_lines={"f.py": {1: "secret"}})
    write_capture(without_source(capture), path)
    assert read_capture(path).source_lines == {}
    assert capture.source_lines != {}


def test_a_file_that_exists_is_kept_unless_asked_otherwise(written: Path) -> None:
    before = written.read_bytes()
    with pytest.raises(MemprofError, match="exists already; choose another name with -o, or overwrite it with --force"):
        write_capture(_capture(label="new"), written)
    assert written.read_bytes() == before
    write_capture(_capture(label="new"), written, if_taken=IfTaken.REPLACE)
    assert read_capture(written).label == "new"


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_folder_is_not_overwritten(tmp_path: Path, overwrite: bool) -> None:
    with pytest.raises(MemprofError, match="is a folder; give the name of a file"):
        check_writable(tmp_path, overwrite=overwrite)


def test_a_missing_folder_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(MemprofError, match=f"the folder {tmp_path}/no does not exist"):
        write_capture(_capture(), tmp_path / "no" / "step.memprof")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_must_not_be_written_to(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)  # root writes to every folder
    with pytest.raises(MemprofError, match=f"the folder {path.parent} cannot be written to; choose another"):
        write_capture(_capture(), path)
    assert list(path.parent.iterdir()) == []


def test_the_file_can_be_read_by_whom_any_other_new_file_can(written: Path) -> None:
    other = written.with_name("other")
    other.touch()
    assert stat.S_IMODE(written.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


@pytest.mark.parametrize(
    ("place", "error", "raised"),
    [
        ("os.replace", OSError(18, "Invalid cross-device link"), MemprofError),
        ("os.fsync", OSError(28, "No space left on device"), MemprofError),
        ("zipfile.ZipFile.writestr", OSError(28, "No space left on device"), MemprofError),
        ("json.dumps", KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_a_failure_while_writing_leaves_everything_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException, raised: type, exists: bool
) -> None:
    if exists:
        path.write_bytes(b"before")

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(place, fail)
    with pytest.raises(raised) as caught:
        write_capture(_capture(), path, if_taken=IfTaken.REPLACE)
    if raised is MemprofError:
        assert str(caught.value) == f"the capture cannot be written to {path}: {error.strerror}"
    assert [(file.name, file.read_bytes()) for file in path.parent.iterdir()] == (
        [(path.name, b"before")] if exists else []
    )


def test_there_is_no_half_written_file_at_any_moment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    writestr = zipfile.ZipFile.writestr

    def look(archive: zipfile.ZipFile, *arguments: Any) -> None:
        writestr(archive, *arguments)
        seen.append(path.exists())

    monkeypatch.setattr(capture_file.zipfile.ZipFile, "writestr", look)
    write_capture(_capture(), path)
    assert seen == [False, False, False]
    assert [file.name for file in path.parent.iterdir()] == [path.name]
