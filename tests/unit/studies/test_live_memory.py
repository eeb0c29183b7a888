"""Memory profiles of JAX, made by hand: who made what, what leaked, and what belongs to a step."""

from __future__ import annotations

import pytest
from report_builder import buffer, report

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.live_buffer import StackFrame
from memprof.analysis.records.memory_profile import Alive, Kind, MemoryProfile
from memprof.reports.formats import terminal
from memprof.reports.options import RenderOptions
from memprof.reports.views.memory_profile import memory_profile_diff_document, memory_profile_document
from memprof.studies.live_memory import beside_step, by_calls, by_folder, changes

pytestmark = pytest.mark.with_one_jax

LOOP, KEEP = StackFrame("/p/train.py", "loop", 9, True), StackFrame("/p/eval/keep.py", "keep", 3, True)
INSIDE = StackFrame("jax/_src/numpy/array_creation.py", "ones", 80, False)
MEBI = 2**20


def alive(each_bytes: int, count: int, *calls: StackFrame, kind: Kind = Kind.BUFFER, device: str = "cuda:0") -> Alive:
    device = device if kind is Kind.BUFFER else ""
    return Alive(kind=kind, device=device, count=count, size_bytes=each_bytes * count, stack=(*calls, INSIDE))


def profile(*entries: Alive, name: str = "memory.prof") -> MemoryProfile:
    return MemoryProfile(name=name, alive=entries)


def test_stacks_that_differ_within_libraries_alone_are_one() -> None:
    direct = Alive(kind=Kind.BUFFER, device="cuda:0", count=2, size_bytes=8, stack=(LOOP,))
    (made,) = by_calls([alive(4, 1, LOOP), direct])
    assert (made.source, made.function, made.count, made.size_bytes) == ("/p/train.py:9", "loop", 3, 12)


def test_folders_are_those_of_the_innermost_own_line() -> None:
    assert by_folder([alive(4, 1, LOOP), alive(8, 2, LOOP, KEEP), alive(2, 1)]) == {
        "/p/eval": 16,
        "/p": 4,
        "jax/_src/numpy": 2,
    }


def test_what_became_more_is_told_by_stack_and_size() -> None:
    before = profile(alive(4, 2, LOOP), alive(MEBI, 1, LOOP, KEEP), alive(8, 1, LOOP))
    after = profile(alive(4, 2, LOOP), alive(MEBI, 4, LOOP, KEEP))
    grown, shrunk = changes(before, after)
    assert (grown.calls, grown.each_bytes, grown.before_count, grown.after_count) == ((LOOP, KEEP), MEBI, 1, 4)
    assert (grown.delta_bytes, shrunk.delta_bytes) == (3 * MEBI, -8)
    text = terminal.lower(memory_profile_diff_document(before, after, top=9), RenderOptions(width=100))
    assert "Arrays grew by 3.00 MiB; most of it at /p/eval/keep.py:3 keep." in text


def test_nothing_grew() -> None:
    text = terminal.lower(memory_profile_diff_document(profile(), profile(), top=9), RenderOptions(width=100))
    assert "Arrays did not grow." in text


def step() -> object:
    """Two weights of 1 MiB, with two moments each, and a batch of 2 KiB."""
    argument = {"phase": Phase.ARGUMENT}
    arrays = [buffer((512, 512), "f32", Category.PARAMS, op=f"params[{n}]", **argument) for n in range(2)]
    arrays += [buffer((512, 512), "f32", Category.OPTIMIZER_STATE, op=f"opt_state[{n}]", **argument) for n in range(4)]
    arrays += [buffer((512,), "s32", Category.BATCH, op="batch", **argument)]
    return report([*arrays, buffer((512, 512), "f32", Category.ACTIVATIONS)])


def test_arrays_of_the_step_are_known_by_their_size_and_the_rest_by_who_made_it() -> None:
    """6 arrays of 1 MiB are the step's; the loop made 6 and `keep` 3, so those of `keep` are copies."""
    found = profile(
        alive(MEBI, 3, LOOP, KEEP),
        alive(MEBI, 6, LOOP),
        alive(2048, 1, LOOP),
        alive(100, 3, LOOP, KEEP),
        alive(5000, 2, LOOP, kind=Kind.EXECUTABLE),
    )
    beside = beside_step(found, step())
    assert [(each.category, each.num_alive, each.num_wanted) for each in beside.step] == [
        (Category.OPTIMIZER_STATE, 4, 4),
        (Category.PARAMS, 2, 2),
        (Category.BATCH, 1, 1),
    ]
    copies, small = beside.others
    assert (copies.calls, copies.count, copies.like) == ((LOOP, KEEP), 3, (Category.PARAMS, Category.OPTIMIZER_STATE))
    assert (small.each_bytes, small.count, small.like) == (100, 3, ())
    assert beside.other_bytes == 3 * MEBI + 300
    assert beside.executable_bytes == 10_000
    assert beside.pool_bytes is not None
    assert beside.left_bytes == beside.pool_bytes - beside.other_bytes - 10_000
    text = terminal.lower(memory_profile_document(found, beside, top=9), RenderOptions(width=120))
    assert "it fits." in text
    assert "4 of 4" in text


def test_arguments_that_are_not_alive_are_said() -> None:
    beside = beside_step(profile(alive(MEBI, 1, LOOP)), step())
    assert [(each.category, each.num_alive, each.num_wanted) for each in beside.step] == [
        (Category.OPTIMIZER_STATE, 1, 4),
        (Category.PARAMS, 0, 2),
        (Category.BATCH, 0, 1),
    ]


def test_of_several_devices_the_fullest_stands_beside_the_step() -> None:
    found = profile(alive(MEBI, 6, LOOP, device="cuda:0"), alive(MEBI, 7, LOOP, device="cuda:1"))
    beside = beside_step(found, step())
    assert (beside.device, beside.other_bytes) == ("cuda:1", MEBI)
    assert found.devices == ("cuda:1", "cuda:0")
