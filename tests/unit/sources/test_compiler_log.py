"""What XLA writes to stderr while it compiles: the partitioner's messages are kept, all else goes where it would."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memprof.sources.jax.xla.compiler_log import LOG_FILE, kept_stderr, muted_stderr, partitioner_messages

pytestmark = pytest.mark.with_one_jax

# As jaxlib 0.10.2 and 0.12 write them, and an older one.
NEW = "W1122 14:43:31.736932   24803 spmd_partitioner.cc:656] [SPMD] Involuntary full rematerialization. One."
OLD = "2025-04-14 17:55:24.092274: E external/xla/xla/service/spmd/spmd_partitioner.cc:621] [spmd] Involuntary. Two."
OTHER = "W1122 14:43:31.736932   24803 hlo_rematerialization.cc:3005] Can't reduce memory use below 1GiB"


def test_messages_of_the_partitioner_are_kept_and_all_else_is_written_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "dump"
    os.write(2, b"before\n")
    with kept_stderr(folder):
        for line in (NEW, OTHER, OLD, NEW):
            os.write(2, f"{line}\n".encode())
    os.write(2, b"after\n")
    assert capfd.readouterr().err == f"before\n{OTHER}\nafter\n"
    assert partitioner_messages(folder) == ("Involuntary full rematerialization. One.", "Involuntary. Two.")


def test_where_there_is_no_room_for_a_log_nothing_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    with kept_stderr(tmp_path / "file"):
        os.write(2, f"{NEW}\n".encode())
    assert NEW in capfd.readouterr().err
    assert partitioner_messages(tmp_path / "file") == ()


def test_messages_are_limited_and_can_be_shown(tmp_path: Path) -> None:
    mark = NEW.partition("[SPMD] ")[0] + "[SPMD] "
    lines = [f"{mark}\x1b[31m{'x' * 10_000}", *(f"{mark}number {number}" for number in range(200))]
    (tmp_path / LOG_FILE).write_bytes("\n".join(lines).encode() + b"\n\xff\xfe")
    found = partitioner_messages(tmp_path)
    assert len(found) == 100
    assert len(found[0]) <= 1 << 13
    assert all(text.isprintable() for text in found)


def test_what_a_library_writes_to_a_muted_stderr_is_gone(capfd: pytest.CaptureFixture[str]) -> None:
    with muted_stderr():
        os.write(2, b"a library's warning\n")
    os.write(2, b"ours\n")
    assert capfd.readouterr().err == "ours\n"
