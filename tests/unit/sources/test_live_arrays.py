"""What holds the arrays of a script, which goes on while it is looked for."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from memprof.sources.jax.running.live_arrays import _step


@pytest.fixture
def threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_take_turns_often")
def test_a_dictionary_may_grow_while_it_is_looked_through() -> None:
    wanted, is_over = object(), threading.Event()
    holder: dict[object, object] = dict.fromkeys(range(100_000))
    holder["wanted"] = wanted

    def change() -> None:
        while not is_over.is_set():
            for number in range(100):
                holder[str(number)] = None
            for number in range(100):
                del holder[str(number)]

    changing = threading.Thread(target=change)
    changing.start()
    try:
        assert {_step(holder, wanted) for _ in range(30)} == {"['wanted']"}
    finally:
        is_over.set()
        changing.join()
