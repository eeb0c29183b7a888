"""The cache of plans: what is damaged is not there, what is too much goes, and no trouble with it is an error."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import platformdirs
import pytest

from memprof.errors import MemprofError
from memprof.sources.jax.xla import plan_cache
from memprof.sources.jax.xla.plan import Plan
from memprof.sources.jax.xla.plan_cache import PlanCache

pytestmark = pytest.mark.with_one_jax

KEY, OTHER = "1" * 64, "2" * 64


def plan(number: int = 0, *, num_bytes: int = 1000) -> Plan:
    """One as it is found; its bytes cannot be packed."""
    proto = random.Random(number).randbytes(num_bytes)
    return Plan(
        hlo_proto=proto,
        memory_report=b"report",
        totals=None,
        compile_seconds=1.5 + number,
        partitioner_messages=("one", "two") if number else (),
        refusal="Ran out of memory: é." if number else "",
        is_cached=True,
    )


@pytest.fixture
def cache(tmp_path: Path) -> PlanCache:
    return PlanCache(folder=tmp_path / "memprof" / "plans", limit_bytes=1 << 20)


def entry(cache: PlanCache) -> Path:
    (path,) = cache.folder.iterdir()
    return path


def test_a_plan_is_found_as_it_was_kept_and_by_its_own_key_alone(cache: PlanCache) -> None:
    assert cache.find(KEY) is None
    cache.keep(KEY, plan())
    assert (cache.find(KEY), cache.find(OTHER)) == (plan(), None)
    cache.keep(KEY, plan(1))
    assert cache.find(KEY) == plan(1)
    assert cache.usage().num_plans == 1


def test_nobody_else_can_look_into_the_folder(cache: PlanCache) -> None:
    before = os.umask(0)
    try:
        cache.keep(KEY, plan())
        assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
        cache.folder.chmod(0o755)
        cache.keep(OTHER, plan())
        assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_a_folder_that_others_can_write_to_is_not_used(cache: PlanCache, tmp_path: Path) -> None:
    cache.keep(KEY, plan())
    cache.folder.chmod(0o777)
    assert cache.find(KEY) is None
    assert "is writable by others" in cache.why_unused()
    before = entry(cache).read_bytes()
    cache.keep(KEY, plan(1))
    assert entry(cache).read_bytes() == before
    linked = PlanCache(folder=tmp_path / "link", limit_bytes=cache.limit_bytes)
    cache.folder.chmod(0o700)
    linked.folder.symlink_to(cache.folder)
    assert linked.find(KEY) is None


def _repacked(data: bytes) -> bytes:
    body = zlib.compress(data)
    return plan_cache._VERSION + plan_cache._digest(body, KEY) + body


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut in the version": lambda content: content[:5],
    "cut in the digest": lambda content: content[:20],
    "cut in the body": lambda content: content[:-1],
    "longer": lambda content: content + b"x",
    "of another version": lambda content: content.replace(b"plan/6", b"plan/5"),
    "of another kind": lambda content: b"PK\3\4" + content,
    "another body": lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:],
    "of another key": lambda content: plan_cache._packed(plan(), OTHER),
    "with a digest, and not packed": lambda content: (
        plan_cache._VERSION + plan_cache._digest(b"no zlib", KEY) + b"no zlib"
    ),
    "with a digest, and too short": lambda content: _repacked(b"short"),
    "with a digest, and a negative time": lambda content: plan_cache._packed(
        replace(plan(), compile_seconds=-1.0), KEY
    ),
    "with a digest, and no time": lambda content: plan_cache._packed(
        replace(plan(), compile_seconds=float("nan")), KEY
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_plan_is_as_if_it_were_not_there_and_is_replaced(cache: PlanCache, damage: str) -> None:
    cache.keep(KEY, plan())
    entry(cache).write_bytes(DAMAGES[damage](entry(cache).read_bytes()))
    assert cache.find(KEY) is None
    cache.keep(KEY, plan())
    assert cache.find(KEY) == plan()


def test_what_expands_to_more_than_a_plan_has_is_none(cache: PlanCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "_MAX_BYTES", 10_000)
    cache.keep(KEY, replace(plan(), hlo_proto=bytes(100_000)))
    assert cache.find(KEY) is None


def _write_unreadable(path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0)


NO_PLANS = {
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "loop": lambda path: path.symlink_to(path),
    "link": lambda path: path.symlink_to(path.parent.parent / "users.txt"),
    "unreadable": _write_unreadable,
}


@pytest.mark.parametrize("kind", NO_PLANS)
def test_what_is_no_file_is_no_plan(cache: PlanCache, kind: str) -> None:
    cache.keep(OTHER, plan())
    NO_PLANS[kind](cache._path(KEY))
    assert cache.find(KEY) is None
    cache.keep(KEY, plan())  # in silence, whether it can be replaced or not
    assert cache.find(OTHER) == plan()


@pytest.mark.parametrize("kind", ["link", "loop", "pipe", "unreadable"])
def test_what_is_no_plan_gives_its_place_to_one_and_lends_it_nothing(cache: PlanCache, kind: str) -> None:
    cache.keep(OTHER, plan())
    path, users = cache._path(KEY), cache.folder.parent / "users.txt"
    users.write_text("mine")
    NO_PLANS[kind](path)
    cache.keep(KEY, plan())
    assert cache.find(KEY) == plan()
    assert (users.read_text(), path.stat().st_mode) == ("mine", cache._path(OTHER).stat().st_mode)


def test_a_folder_in_the_place_of_a_plan_is_not_counted_and_stays(cache: PlanCache) -> None:
    cache.keep(OTHER, plan())
    cache._path(KEY).mkdir()
    assert cache.usage().num_plans == cache.clear().num_plans == 1
    assert [path.name for path in cache.folder.iterdir()] == [cache._path(KEY).name]


def test_what_was_not_used_for_the_longest_time_goes_first(cache: PlanCache) -> None:
    cache = PlanCache(folder=cache.folder, limit_bytes=4200)
    for number in range(3):
        cache.keep(f"{number}" * 64, plan(number))
        os.utime(cache._path(f"{number}" * 64), (number, number))
    assert cache.find("0" * 64) is not None  # now the last one used
    cache.keep("3" * 64, plan(3))
    assert [number for number in range(4) if cache.find(f"{number}" * 64)] == [0, 2, 3]
    assert cache.usage().size_bytes <= cache.limit_bytes
    cache.keep("4" * 64, plan(num_bytes=5000))  # more than all of it: the others stay
    assert cache.usage().num_plans == 3


def test_what_is_not_ours_stays(cache: PlanCache) -> None:
    cache.keep(KEY, plan())
    (cache.folder / "mine.txt").write_text("mine")
    (cache.folder / ".memprof-0123456789abcdef").write_bytes(bytes(5000))  # of a command that was killed
    PlanCache(folder=cache.folder, limit_bytes=2000).keep(OTHER, plan())
    assert (cache.folder / "mine.txt").exists()
    assert cache.clear().num_plans >= 1
    assert [path.name for path in cache.folder.iterdir()] == ["mine.txt"]


def test_a_cache_of_size_zero_keeps_nothing_and_gives_nothing(cache: PlanCache) -> None:
    cache.keep(KEY, plan())
    off = PlanCache(folder=cache.folder, limit_bytes=0)
    off.keep(OTHER, plan())
    assert (off.find(KEY), cache.find(OTHER)) == (None, None)


def test_a_folder_that_cannot_be_made_or_written_is_no_error(cache: PlanCache, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    in_a_file = PlanCache(folder=tmp_path / "file" / "plans", limit_bytes=1 << 20)
    in_a_file.keep(KEY, plan())
    assert (in_a_file.find(KEY), in_a_file.usage().num_plans, in_a_file.clear().num_plans) == (None, 0, 0)


@pytest.fixture
def read_only(cache: PlanCache, monkeypatch: pytest.MonkeyPatch) -> PlanCache:
    """A cache with one plan, in a folder that cannot be written to, not even by root."""
    cache.keep(KEY, plan())
    cache.folder.chmod(0o500)

    def refuse(path: Path, **_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    return cache


def test_a_folder_that_is_only_read_gives_its_plans_and_is_left_so(read_only: PlanCache) -> None:
    read_only.keep(OTHER, plan())
    assert (read_only.find(KEY), read_only.find(OTHER)) == (plan(), None)
    assert (read_only.why_unused(), read_only.is_read_only()) == ("", True)
    assert stat.S_IMODE(read_only.folder.stat().st_mode) == 0o500


def test_what_cannot_be_removed_is_not_said_to_be(read_only: PlanCache) -> None:
    with pytest.raises(MemprofError, match=rf"{KEY}.* cannot be removed: Read-only file system"):
        read_only.clear()


def test_why_a_cache_is_not_used(cache: PlanCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert (cache.why_unused(), cache.is_read_only()) == ("", False)
    assert PlanCache(folder=file / "plans", limit_bytes=1).why_unused() == f"{file} is not a folder"
    assert PlanCache(folder=tmp_path, limit_bytes=0).why_unused() == "MEMPROF_CACHE_SIZE is 0"
    assert PlanCache(folder=Path("~/plans"), limit_bytes=0).why_unused() == "no home folder exists"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert cache.why_unused() == f"{tmp_path} cannot be written to"


def test_a_full_disk_is_no_error(cache: PlanCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.keep(KEY, plan())

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    cache.keep(KEY, plan(1))
    cache.keep(OTHER, plan(1))
    assert (cache.find(KEY), cache.find(OTHER)) == (plan(), None)
    assert len(list(cache.folder.iterdir())) == 1


def test_the_environment_says_where_it_is_and_how_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPROF_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MEMPROF_CACHE_SIZE", "20MiB")
    assert PlanCache.of_user() == PlanCache(folder=tmp_path / "plans", limit_bytes=20 << 20)
    monkeypatch.setenv("MEMPROF_CACHE_SIZE", "0")
    assert PlanCache.of_user().limit_bytes == 0
    monkeypatch.setenv("MEMPROF_CACHE_SIZE", "")
    assert PlanCache.of_user().limit_bytes == 1 << 30
    monkeypatch.setenv("MEMPROF_CACHE_SIZE", "much")
    with pytest.raises(MemprofError, match=r"MEMPROF_CACHE_SIZE is not the size of a cache: 'much' .* 0 disables it"):
        PlanCache.of_user()
    monkeypatch.setenv("MEMPROF_CACHE_DIR", "here")
    with pytest.raises(MemprofError, match="MEMPROF_CACHE_DIR is 'here', but the absolute path"):
        PlanCache.of_user()


def test_else_it_is_in_the_users_folder_for_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMPROF_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert PlanCache.of_user() == PlanCache(folder=tmp_path / "memprof" / "plans", limit_bytes=1 << 30)
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: Path("~/.cache", name))  # nobody's home
    assert PlanCache.of_user().limit_bytes == 0


def test_eight_processes_at_once_never_see_half_a_plan() -> None:
    root = Path(__file__).parents[3]
    racing = [sys.executable, "-m", "benchmarks.racing_cache", "--processes", "8", "--rounds", "2"]
    ended = subprocess.run(racing, cwd=root, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "'num_failed': 0, " in ended.stdout
    assert "'num_damaged': 0, " in ended.stdout


def test_a_limit_that_was_lowered_takes_effect_when_a_plan_is_found(cache: PlanCache) -> None:
    for number, key in enumerate((OTHER, KEY)):
        cache.keep(key, plan(number, num_bytes=100_000))
    lowered = replace(cache, limit_bytes=150_000)
    assert lowered.find_or_make(KEY, pytest.fail, waiting=pytest.fail) == plan(1, num_bytes=100_000)
    assert (lowered.find(OTHER), lowered.usage().num_plans) == (None, 1)
