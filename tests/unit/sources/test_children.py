"""Child processes that end together, and those of other callers that must not."""

from __future__ import annotations

from memprof.sources.jax.processes.child_process import Children


class Child:
    """Counts how often it is ended."""

    def __init__(self) -> None:
        self.ends = 0

    def end(self) -> None:
        self.ends += 1


def test_one_callers_children_end_and_anothers_live_on() -> None:
    ours, others = Children(), Children()
    first, second, other, gone = Child(), Child(), Child(), Child()
    for child in (first, second, gone):
        ours.add(child)
    others.add(other)
    ours.remove(gone)
    ours.end()
    assert [child.ends for child in (first, second, other, gone)] == [1, 1, 0, 0]


def test_who_comes_too_late_ends_at_once() -> None:
    children, late = Children(), Child()
    children.end()
    children.add(late)
    assert late.ends == 1
