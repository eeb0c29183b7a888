"""Files are there as a whole or not at all, and no name is taken twice."""

from __future__ import annotations

import os
import resource
import signal
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from memprof import files
from memprof.errors import MemprofError
from memprof.files import IfTaken, as_argument, check_folder_writable, check_writable, write_whole


@pytest.fixture(params=["no name", "hidden name", "no hard links"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way in which a file can be written: they must not differ in anything that can be seen."""
    if request.param != "no name":
        monkeypatch.setattr(files, "_open_without_name", lambda folder: None)
    if request.param == "no hard links":

        def link(*_: object, **__: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", link)
    return str(request.param)


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """No file may become larger: what a full disk does, at a place that one can choose."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.usefixtures("way")
class TestWriting:
    def test_many_writers_of_one_name_lose_nothing(self, tmp_path):
        path = tmp_path / "step.memprof"

        def write(number: int) -> Path:
            return write_whole(path, str(number).encode(), what="it", if_taken=IfTaken.NUMBER)

        with ThreadPoolExecutor(8) as executor:
            written = list(executor.map(write, range(64)))
        assert len(set(written)) == 64
        assert {int(each.read_bytes()) for each in written} == set(range(64))
        assert names(tmp_path) == sorted(each.name for each in written)
        assert {"step.memprof", "step-2.memprof", "step-64.memprof"} <= set(names(tmp_path))

    def test_the_last_of_many_writers_has_the_plain_name_and_nothing_is_lost(self, tmp_path):
        path = tmp_path / "step.memprof"

        def write(number: int) -> Path:
            return write_whole(path, str(number).encode(), what="it", if_taken=IfTaken.MOVE)

        with ThreadPoolExecutor(8) as executor:
            assert set(executor.map(write, range(64))) == {path}
        assert {int(each.read_bytes()) for each in tmp_path.iterdir()} == set(range(64))
        assert names(tmp_path) == sorted(["step.memprof", *(f"step-{number}.memprof" for number in range(1, 64))])

    def test_of_many_writers_that_may_not_overwrite_one_is_first(self, tmp_path):
        def write(number: int) -> str:
            try:
                write_whole(tmp_path / "it", str(number).encode(), what="it")
            except MemprofError as error:
                return str(error)
            return ""

        with ThreadPoolExecutor(8) as executor:
            ended = list(executor.map(write, range(16)))
        assert ended.count("") == 1
        assert all("exists already" in each for each in ended if each)
        assert int((tmp_path / "it").read_bytes()) == ended.index("")

    @pytest.mark.parametrize("if_taken", [IfTaken.REPLACE, IfTaken.NUMBER])
    def test_a_disk_that_becomes_full_leaves_the_old_file_whole(self, tmp_path, if_taken):
        path = tmp_path / "old"
        path.write_bytes(b"old" * 1000)
        with largest_file(10_000), pytest.raises(MemprofError) as caught:
            write_whole(path, bytes(20_000), what="the report", if_taken=if_taken)
        assert str(caught.value) == f"the report cannot be written to {path}: File too large"
        assert (names(tmp_path), path.read_bytes()) == (["old"], b"old" * 1000)

    def test_what_is_written_can_be_read_back_before_it_has_its_name(self, tmp_path):
        seen = []

        def fill(file: BinaryIO) -> None:
            file.write(b"abc")
            file.seek(0)
            seen.append((file.read(), (tmp_path / "it").exists()))

        write_whole(tmp_path / "it", fill, what="it")
        assert seen == [(b"abc", False)]

    def test_the_mode_is_that_of_a_new_file_and_then_stays(self, tmp_path):
        path, other = tmp_path / "it", tmp_path / "other"
        other.touch()
        write_whole(path, b"1", what="it")
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)
        path.chmod(0o600)
        write_whole(path, b"2", what="it", if_taken=IfTaken.REPLACE)
        assert (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) == (0o600, b"2")

    def test_a_link_stays_a_link(self, tmp_path):
        (tmp_path / "there").mkdir()
        (tmp_path / "there" / "it").write_bytes(b"1")
        (tmp_path / "link").symlink_to("there/it")
        write_whole(tmp_path / "link", b"2", what="it", if_taken=IfTaken.REPLACE)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there" / "it").read_bytes() == b"2"


class TestBeforeTheWork:
    @pytest.mark.parametrize("name", ["x" * 256, "x" * 300 + ".memprof", "a\0b"])
    def test_a_name_that_no_file_can_have(self, tmp_path, name):
        for check in (lambda path: check_writable(path, overwrite=True), check_folder_writable):
            with pytest.raises(MemprofError, match="is not a valid file name") as caught:
                check(tmp_path / name)
            assert len(str(caught.value)) < 200

    def test_the_longest_name_can_be_written(self, tmp_path):
        for _ in range(2):
            assert write_whole(tmp_path / ("x" * 255), b"", what="it", if_taken=IfTaken.REPLACE).exists()

    def test_a_device_is_not_replaced(self):
        with pytest.raises(MemprofError, match="/dev/null is not a regular file"):
            write_whole(Path("/dev/null"), b"", what="it", if_taken=IfTaken.REPLACE)
        assert Path("/dev/null").is_char_device()

    def test_a_link_to_nowhere_is_taken(self, tmp_path):
        (tmp_path / "link").symlink_to("nowhere")
        with pytest.raises(MemprofError, match="link exists already"):
            write_whole(tmp_path / "link", b"", what="it")

    def test_a_folder_that_is_a_file_or_in_one(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(MemprofError, match="file exists already and is not a folder"):
            check_folder_writable(tmp_path / "file")
        with pytest.raises(MemprofError, match=r"cannot be created, because .*/file is not a folder"):
            check_folder_writable(tmp_path / "file" / "rows")
        check_folder_writable(tmp_path / "new" / "rows")
        assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("path", "argument"),
    [("step.memprof", "step.memprof"), ("-x.memprof", "./-x.memprof"), ("a b", "'a b'"), ("--y z", "'./--y z'")],
)
def test_a_path_is_an_argument_and_never_an_option(path: str, argument: str) -> None:
    assert as_argument(path) == argument
