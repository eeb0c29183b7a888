"""Folders for work: gone with their command, or with the next one; and no other folder is touched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from integration.command import wait_until

from memprof.sources.jax.processes.work_folder import remove_abandoned, work_folder

# Makes a folder, leaves something that is hard to remove and a process behind, and is killed.
_KILLED = """
import os, signal, subprocess, sys
from pathlib import Path
from memprof.sources.jax.processes.work_folder import work_folder
with work_folder(Path(sys.argv[1])) as folder:
    Path(folder, "closed", "inner").mkdir(parents=True)
    Path(folder, "closed").chmod(0)
    left = subprocess.Popen(
        ["sleep", "60"], env={"TMPDIR": str(folder)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    print(left.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def has_ended(process: Path) -> bool:
    try:
        return b"Z" in (process / "stat").read_bytes()
    except OSError:  # nobody is to be told of it any more
        return True


def test_it_is_there_for_the_block(tmp_path: Path) -> None:
    with work_folder(tmp_path) as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_command_left_goes_with_the_next_one(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    (abandoned,) = tmp_path.iterdir()
    left = Path("/proc", killed.stdout.strip())
    assert left.exists()
    with work_folder(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]
        assert not abandoned.exists()
        wait_until(lambda: has_ended(left), seconds=30)  # it is killed, and may take a moment to go


def test_folders_in_use_and_those_of_others_stay(tmp_path: Path) -> None:
    old = time.time() - 3600
    kept = ["memprof-notes", "memprof-abcdefgh.txt", "memprof-12345678", "other-abcdefgh"]
    for name in kept:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
        os.utime(tmp_path / name, (old, old))
    (tmp_path / "memprof-newfresh").mkdir()
    (tmp_path / "memprof-oldempty").mkdir()
    os.utime(tmp_path / "memprof-oldempty", (old, old))
    (tmp_path / "memprof-linklink").symlink_to(tmp_path / "memprof-12345678")
    with work_folder(tmp_path) as folder:
        remove_abandoned(tmp_path)
        names = {path.name for path in tmp_path.iterdir()}
    assert names == {*kept, "memprof-newfresh", "memprof-linklink", folder.name}
    assert (tmp_path / "memprof-12345678" / "file").exists()


def test_two_commands_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    with work_folder(tmp_path) as first:
        with work_folder(tmp_path) as second:
            assert first != second
            assert first.is_dir()
        assert not second.exists()
        assert first.is_dir()
