"""Child processes that end together, and those of other callers that must not."""

from __future__ import annotations

import subprocess
import sys

from memprof.capture.launch import Children

SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")


def start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(SLEEP, start_new_session=True)


def test_one_callers_children_end_and_anothers_live_on() -> None:
    ours, others = Children(), Children()
    first, second, other = start(), start(), start()
    try:
        ours.add(first)
        ours.add(second)
        others.add(other)
        ours.end()
        assert first.wait(timeout=30) < 0
        assert second.wait(timeout=30) < 0
        assert other.poll() is None
    finally:
        others.end()
        other.wait(timeout=30)


def test_who_comes_too_late_ends_at_once() -> None:
    children = Children()
    children.end()
    late = start()
    children.add(late)
    assert late.wait(timeout=30) < 0


def test_who_is_gone_is_left_alone() -> None:
    children = Children()
    done = start()
    children.add(done)
    children.remove(done)
    children.end()
    assert done.poll() is None
    done.kill()
    done.wait(timeout=30)
