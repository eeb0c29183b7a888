"""What `jax.profiler.save_device_memory_profile` writes, read back; and files that look like it."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from made_compiles import Commands

from memprof.analysis.memory.pprof import Profile
from memprof.analysis.records.memory_profile import Kind
from memprof.errors import MemprofError
from memprof.sources.dumps.memory_profiles import memory_profile

SHAPE = (123, 457)  # of no other array in this process


def kept() -> Any:
    return [jnp.full(SHAPE, number, jnp.float32) for number in range(3)]


def test_arrays_of_a_running_program_are_found_with_their_stack(tmp_path: Path) -> None:
    arrays = jax.block_until_ready(kept())
    path = tmp_path / "memory.prof"
    jax.profiler.save_device_memory_profile(path)
    profile = memory_profile(path)
    assert profile is not None
    found = [each for each in profile.of(Kind.BUFFER) if each.each_bytes == 123 * 457 * 4]
    assert sum(each.count for each in found) == len(arrays)
    (calls,) = {tuple(call.function for call in each.own_calls[-2:]) for each in found}
    assert "kept" in calls
    assert all(each.own_calls[-1].file == __file__ for each in found)
    assert profile.devices == ("cpu:0",)
    assert profile.count_of(Kind.EXECUTABLE) > 0


def made(**fields: Any) -> Any:
    """A profile of one array of 8 bytes."""
    texts = ["", "allocations", "count", "space", "bytes", "kind", "buffer", "device", "cuda:0", "f", "/p/f.py"]
    profile = Profile(string_table=texts)
    for name, unit in ((1, 2), (3, 4)):
        profile.sample_type.add(type=name, unit=unit)
    profile.function.add(id=1, name=9, filename=10)
    profile.location.add(id=1).line.add(function_id=1, line=5)
    sample = profile.sample.add(location_id=[1], value=fields.get("value", [2, 16]))
    sample.label.add(key=5, str=fields.get("kind", 6))
    sample.label.add(key=7, str=8)
    return profile


def written(path: Path, profile: Any) -> Path:
    path.write_bytes(gzip.compress(profile.SerializeToString()))
    return path


def test_counts_bytes_and_lines_are_those_of_the_file(tmp_path: Path) -> None:
    profile = memory_profile(written(tmp_path / "memory.prof", made()))
    assert profile is not None
    (alive,) = profile.alive
    assert (alive.kind, alive.device, alive.count, alive.size_bytes, alive.each_bytes) == ("buffer", "cuda:0", 2, 16, 8)
    assert [(call.file, call.function, call.line, call.is_own) for call in alive.stack] == [("/p/f.py", "f", 5, True)]


@pytest.mark.parametrize("change", [{"value": [2]}, {"value": [-1, 16]}, {"value": [2, 2**63 - 1]}, {"kind": 9}])
def test_damage_is_one_sentence(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(MemprofError, match=r"memory\.prof is damaged"):
        memory_profile(written(tmp_path / "memory.prof", made(**change)))


def test_a_location_without_a_line_is_damage(tmp_path: Path) -> None:
    profile = made()
    del profile.location[0].line[:]
    with pytest.raises(MemprofError, match="damaged"):
        memory_profile(written(tmp_path / "memory.prof", profile))


def test_a_file_that_is_cut_short_says_so(tmp_path: Path) -> None:
    path = written(tmp_path / "memory.prof", made())
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(MemprofError, match="cannot be unpacked"):
        memory_profile(path)


def test_other_files_are_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    (tmp_path / "gzip").write_bytes(gzip.compress(b"\xff text"))
    times = made()
    times.string_table[3] = "cpu"
    assert memory_profile(tmp_path) is None
    assert memory_profile(tmp_path / "text") is None
    assert memory_profile(tmp_path / "gzip") is None
    assert memory_profile(written(tmp_path / "cpu.pb.gz", times)) is None


class TestCommands:
    @pytest.fixture
    def commands(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Commands:
        written(tmp_path / "before.prof", made())
        written(tmp_path / "after.prof", made(value=[5, 40]))
        return Commands(monkeypatch, capsys, tmp_path)

    def test_a_profile_is_imported_and_shown(self, commands: Commands) -> None:
        imported, shown = commands("import", "after.prof"), commands("show", "after.prof")
        assert (imported.code, shown.code) == (0, 0)
        assert imported.stdout == shown.stdout
        assert "40 B of arrays alive" in shown.stdout
        assert "/p/f.py:5 f" in shown.stdout

    def test_a_profile_is_shown_beside_a_capture(self, commands: Commands) -> None:
        assert commands("run", "mlp", "-o", "step.memprof", keeps_files=True).code == 0
        ended = commands("import", "after.prof", "--program", "step.memprof", "-o", "report.json", keeps_files=True)
        assert (ended.code, ended.stderr) == (0, "report written to report.json\n")
        assert '"beside_step": {' in ended.files["report.json"]

    def test_two_profiles_tell_what_leaked(self, commands: Commands) -> None:
        ended = commands("show", "after.prof", "--diff", "before.prof")
        assert (ended.code, "Arrays grew by 24 B; most of it at /p/f.py:5 f." in ended.stdout) == (0, True)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("import", "after.prof", "before.prof"), "give it alone"),
            (("import", "after.prof", "--program", "jit_step"), "--program NAME.memprof"),
            (("show", "after.prof", "--diff", "step.memprof"), "is not a JAX memory profile"),
            (("show", "after.prof", "--format", "csv"), "a memory profile is not shown as csv"),
        ],
    )
    def test_a_mistake_is_one_sentence(self, commands: Commands, arguments: tuple[str, ...], said: str) -> None:
        (commands.folder / "step.memprof").write_bytes(b"a capture")
        ended = commands(*arguments)
        assert (ended.code, said in ended.stderr) == (2, True)
