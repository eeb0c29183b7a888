"""Values from files become records, whichever threads ask for it first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memprof.untrusted import open_regular, quote

# Each round, eight threads are the first that have anything to do with a class. In a process of its own, since the
# fault that this is about ends the process.
_PROGRAM = """
import dataclasses, sys, threading
from typing import Annotated
from msgspec import Meta
from memprof.untrusted import as_record

def first_use():
    def new_record(name, fields):
        return dataclasses.make_dataclass(name, fields, frozen=True, slots=True, kw_only=True)

    inner = new_record("Inner", [("a", Annotated[int, Meta(ge=0)]), ("b", tuple[int, ...], ())])
    outer = new_record("Outer", [("x", tuple[inner, ...]), ("y", inner), ("z", dict[str, inner])])
    inner.__annotations__["b"] = "tuple[int, ...]"  # as `from __future__ import annotations` leaves them
    at_once, found = threading.Barrier(8), []

    def work():
        at_once.wait()
        found.append(as_record({"x": [{"a": 1, "b": [2]}], "y": {"a": 3}, "z": {"q": {"a": 4}}}, outer))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and all(each == found[0] for each in found)

sys.setswitchinterval(1e-6)
for _ in range(100):
    first_use()
"""


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        ("a\x1b[2J", r"'a\x1b[2J'"),
        (7, "7"),
        (["a"], "['a']"),
        ("x" * 200, f"'{'x' * 200}'"),
        ("x" * 201, f"'{'x' * 200}...'"),
    ],
)
def test_what_was_read_is_quoted_clean_and_short(value: object, quoted: str) -> None:
    assert quote(value) == quoted


def test_what_is_no_regular_file_is_not_left_open(tmp_path: Path) -> None:
    free = os.dup(0)
    os.close(free)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    again = os.dup(0)
    os.close(again)
    assert again == free


def test_threads_may_read_records_of_one_class_for_the_first_time_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
