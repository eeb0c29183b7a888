"""Memory profiles of JAX as documents: each table, with the rows beyond `top` summed up in one."""

from __future__ import annotations

from itertools import pairwise

import pytest

from memprof.analysis.records.categories import Category
from memprof.analysis.records.live_buffer import StackFrame
from memprof.analysis.records.memory_profile import Alive, Kind, MemoryProfile
from memprof.reports.document import Bar, Document, Facts, Heading, Note, Table, Tone
from memprof.reports.views.memory_profile import memory_profile_diff_document, memory_profile_document
from memprof.studies.live_memory import BesideStep, Other, StepArrays

_KIB, _MIB = 1 << 10, 1 << 20
_MAIN = StackFrame("/p/main.py", "main", 1, True)
_LOOP, _KEEP = StackFrame("/p/train.py", "loop", 9, True), StackFrame("/q/keep.py", "keep", 3, True)


def _alive(each_bytes: int, count: int, *calls: StackFrame, kind: Kind = Kind.BUFFER, device: str = "cuda:0") -> Alive:
    device = device if kind is Kind.BUFFER else ""
    return Alive(kind=kind, device=device, count=count, size_bytes=each_bytes * count, stack=calls)


def _profile(*alive: Alive, name: str = "memory.prof") -> MemoryProfile:
    return MemoryProfile(name=name, alive=alive)


def _headings(document: Document) -> list[tuple[int, str, str]]:
    return [(each.level, each.text, each.aside) for each in document.blocks if isinstance(each, Heading)]


def _tables(document: Document) -> dict[str, Table]:
    """The tables by the heading before them; that of the step's arguments follows a note."""
    return {
        first.text if isinstance(first, Heading) else "step": table
        for first, table in pairwise(document.blocks)
        if isinstance(table, Table)
    }


def _texts(table: Table) -> list[list[str]]:
    return [["" if isinstance(cell, Bar) else cell.text for cell in row.cells] for row in table.rows]


def _facts(document: Document) -> list[dict[str, tuple[str, ...]]]:
    return [{fact.label: fact.values for fact in each.facts} for each in document.blocks if isinstance(each, Facts)]


# 6 + 2 + 0.5 + 0.5 = 9 MiB of arrays on two devices, and 3 KiB of executables.
FOUND = _profile(
    _alive(2 * _MIB, 3, _MAIN, _LOOP),
    _alive(_MIB, 2, _MAIN, _KEEP, device="cuda:1"),
    _alive(_MIB // 4, 2, _KEEP),
    _alive(_MIB // 2048, 1024),
    _alive(2 * _KIB, 1, _LOOP, kind=Kind.EXECUTABLE),
    _alive(_KIB // 2, 2, _KEEP, kind=Kind.EXECUTABLE),
)


def test_arrays_are_listed_by_stack_folder_and_device_and_executables_by_stack() -> None:
    document = memory_profile_document(FOUND, None, top=9)
    assert _headings(document) == [
        (1, "9.00 MiB of arrays alive", "memory.prof"),
        (2, "Arrays by stack", "the user's own calls"),
        (2, "Arrays by folder", "of the innermost own line"),
        (2, "Executables", "3.00 KiB of code and constants"),
    ]
    (facts,) = _facts(document)
    assert facts == {
        "cuda:0": ("7.00 MiB", "1,029 arrays"),
        "cuda:1": ("2.00 MiB", "2 arrays"),
        "executables": ("3.00 KiB in 3",),
    }
    tables = _tables(document)
    assert _texts(tables["Arrays by stack"]) == [
        ["/p/train.py:9 loop", "6.00 MiB", "66.7%", "3", "main:1"],
        ["/q/keep.py:3 keep", "2.00 MiB", "22.2%", "2", "main:1"],
        ["(no Python stack)", "512 KiB", "5.6%", "1,024", ""],
        ["/q/keep.py:3 keep", "512 KiB", "5.6%", "2", ""],
    ]
    assert [row[:3] for row in _texts(tables["Arrays by folder"])] == [
        ["/p", "6.00 MiB", "66.7%"],
        ["/q", "2.50 MiB", "27.8%"],
        ["(no Python stack)", "512 KiB", "5.6%"],
    ]
    total = tables["Arrays by folder"].total
    assert total is not None
    assert [cell.text for cell in total.cells[:3] if not isinstance(cell, Bar)] == ["arrays", "9.00 MiB", "100%"]
    assert _texts(tables["Executables"]) == [  # shares of their own 3 KiB
        ["/p/train.py:9 loop", "2.00 KiB", "66.7%", "1", ""],
        ["/q/keep.py:3 keep", "1.00 KiB", "33.3%", "2", ""],
    ]


def test_stacks_beyond_the_first_are_summed_up() -> None:
    tables = _tables(memory_profile_document(FOUND, None, top=1))
    # 2 + 0.5 + 0.5 of 9 MiB; 2 + 1,024 + 2 arrays
    assert _texts(tables["Arrays by stack"])[1:] == [["(3 more)", "3.00 MiB", "33.3%", "1,028", ""]]
    assert [row[:2] for row in _texts(tables["Arrays by folder"])] == [["/p", "6.00 MiB"], ["(2 more)", "3.00 MiB"]]
    assert _texts(tables["Executables"])[1:] == [["(1 more)", "1.00 KiB", "33.3%", "2", ""]]
    assert len(_texts(_tables(memory_profile_document(FOUND, None, top=4))["Arrays by stack"])) == 4


def test_a_profile_without_executables_has_no_section_of_them() -> None:
    document = memory_profile_document(_profile(_alive(_KIB, 1, _LOOP)), None, top=9)
    assert _facts(document) == [{"cuda:0": ("1.00 KiB", "1 arrays")}]
    assert [text for _, text, _ in _headings(document)] == [
        "1.00 KiB of arrays alive",
        "Arrays by stack",
        "Arrays by folder",
    ]


def test_of_the_callers_the_four_innermost_are_named() -> None:
    calls = [StackFrame("/p/a.py", f"f{number}", number, True) for number in range(7)]
    nameless = StackFrame("/p/b.py", "", 4, True)
    tables = _tables(memory_profile_document(_profile(_alive(8, 1, *calls), _alive(4, 1, nameless)), None, top=9))
    innermost, other = _texts(tables["Arrays by stack"])
    assert (innermost[0], innermost[-1]) == ("/p/a.py:6 f6", "f5:5 < f4:4 < f3:3 < f2:2")
    assert other[0] == "/p/b.py:4"


def beside(*, pool_bytes: int | None, footprint_bytes: int = 6 * _MIB, num_others: int = 2) -> BesideStep:
    """3 of 4 weights of 1 MiB, and 1 of 2 of 2 KiB; others of 2 x 1 MiB and 3 x 1 KiB; 1 KiB of executables."""
    others = (
        Other(calls=(_MAIN, _KEEP), count=2, each_bytes=_MIB, like=(Category.PARAMS, Category.OPTIMIZER_STATE)),
        Other(calls=(), count=3, each_bytes=_KIB, like=()),
    )
    return BesideStep(
        label="my step",
        device="cuda:1",
        step=(
            StepArrays(
                category=Category.PARAMS, shape=(512, 512), dtype="f32", num_wanted=4, num_alive=3, each_bytes=_MIB
            ),
            StepArrays(
                category=Category.BATCH, shape=(512,), dtype="s32", num_wanted=2, num_alive=1, each_bytes=2 * _KIB
            ),
            StepArrays(category=Category.OUTPUTS, shape=(), dtype="f32", num_wanted=5, num_alive=4, each_bytes=_KIB),
        ),
        others=others[:num_others],
        executable_bytes=_KIB,
        footprint_bytes=footprint_bytes,
        pool_bytes=pool_bytes,
    )


def test_beside_a_step_its_arguments_and_the_other_arrays_are_listed() -> None:
    document = memory_profile_document(FOUND, beside(pool_bytes=None), top=9)
    assert _headings(document)[1:3] == [
        (2, "Beside my step", "cuda:1, arrays matched by size"),
        (2, "Other arrays", ""),
    ]
    # 3 x 1 MiB + 2 KiB + 4 KiB, and 2 x 1 MiB + 3 KiB
    assert _facts(document)[1] == {"arguments of the step": ("3.01 MiB",), "other arrays": ("2.00 MiB",)}
    tables = _tables(document)
    assert _texts(tables["step"]) == [
        ["f32[512,512]", "params", "3 of 4", "3.00 MiB"],
        ["s32[512]", "batch", "1 of 2", "2.00 KiB"],
        ["f32[]", "outputs", "4 of 5", "4.00 KiB"],
    ]
    assert _texts(tables["Other arrays"]) == [
        ["/q/keep.py:3 keep", "2.00 MiB", "2", "1.00 MiB", "params, optimizer_state", "main:1"],
        ["(no Python stack)", "3.00 KiB", "3", "1.00 KiB", "", ""],
    ]
    short = _tables(memory_profile_document(FOUND, beside(pool_bytes=None), top=1))
    assert _texts(short["step"])[1:] == [["(2 more)", "", "5 of 7", "6.00 KiB"]]
    assert _texts(short["Other arrays"])[1:] == [["(1 more)", "3.00 KiB", "3", "", "", ""]]
    alone = memory_profile_document(FOUND, beside(pool_bytes=None, num_others=0), top=9)
    assert "Other arrays" not in _tables(alone)


# The others take 2 MiB + 3 KiB and the executables 1 KiB; the step takes 6 MiB.
_TAKEN = 2 * _MIB + 4 * _KIB


@pytest.mark.parametrize(
    ("pool_bytes", "sentence", "tone"),
    [
        (None, "The size of JAX's pool on this target is unknown.", Tone.MUTED),
        (
            _TAKEN + 6 * _MIB,
            "JAX's pool of 8.00 MiB leaves 6.00 MiB for the step, whose footprint is 6.00 MiB: it fits.",
            Tone.GOOD,
        ),
        (
            _TAKEN + 6 * _MIB - 1,
            "JAX's pool of 8.00 MiB leaves 6.00 MiB for the step, whose footprint is 6.00 MiB: it does not fit.",
            Tone.BAD,
        ),
        (
            _MIB,  # less than what the others take
            "JAX's pool of 1.00 MiB leaves 0 B for the step, whose footprint is 6.00 MiB: it does not fit.",
            Tone.BAD,
        ),
    ],
)
def test_the_note_says_whether_the_rest_of_the_pool_is_enough(
    pool_bytes: int | None, sentence: str, tone: Tone
) -> None:
    document = memory_profile_document(FOUND, beside(pool_bytes=pool_bytes), top=9)
    assert [each for each in document.blocks if isinstance(each, Note)] == [Note(text=sentence, tone=tone)]


# Arrays: 1 MiB + 17 KiB, and then 4 MiB + 3 KiB + 750 KiB.
BEFORE = _profile(
    _alive(_MIB, 1, _MAIN, _LOOP), _alive(_KIB, 9, _KEEP), _alive(2 * _KIB, 4, _MAIN, _KEEP), name="a.prof"
)
AFTER = _profile(
    _alive(_MIB, 4, _MAIN, _LOOP),
    _alive(_KIB, 1, _KEEP),
    _alive(2 * _KIB, 1, _MAIN, _KEEP),
    _alive(_KIB, 2, _LOOP, kind=Kind.EXECUTABLE),
    _alive(512, 1500),
    name="b.prof",
)


def test_what_grew_and_what_shrank_between_two_profiles() -> None:
    document = memory_profile_diff_document(BEFORE, AFTER, top=9)
    assert _headings(document) == [
        (1, "a.prof -> b.prof", "1.02 MiB -> 4.74 MiB"),
        (2, "What grew", "by stack and size"),
        (2, "What shrank", "by stack and size"),
    ]
    grew = Note(text="Arrays grew by 3.72 MiB; most of it at /p/train.py:9 loop.", tone=Tone.WARNING)
    assert document.blocks[1] == grew
    tables = _tables(document)
    assert _texts(tables["What grew"]) == [
        ["/p/train.py:9 loop", "+3.00 MiB", "1 to 4", "1.00 MiB", "main:1"],
        ["(no Python stack)", "+750 KiB", "0 to 1,500", "512 B", ""],
        ["/p/train.py:9 loop (executable)", "+2.00 KiB", "0 to 2", "1.00 KiB", ""],
    ]
    assert _texts(tables["What shrank"]) == [
        ["/q/keep.py:3 keep", "-8.00 KiB", "9 to 1", "1.00 KiB", ""],
        ["/q/keep.py:3 keep", "-6.00 KiB", "4 to 1", "2.00 KiB", "main:1"],
    ]
    short = _tables(memory_profile_diff_document(BEFORE, AFTER, top=1))
    assert _texts(short["What grew"])[1:] == [["(2 more)", "+752 KiB", "", "", ""]]
    assert _texts(short["What shrank"])[1:] == [["(1 more)", "-6.00 KiB", "", "", ""]]


def test_arrays_of_another_make_but_the_same_size_did_not_grow() -> None:
    document = memory_profile_diff_document(
        _profile(_alive(_MIB, 1, _LOOP)), _profile(_alive(_MIB, 1, _KEEP), name="b.prof"), top=9
    )
    assert document.blocks[1] == Note(text="Arrays did not grow.", tone=Tone.GOOD)
    assert [text for _, text, _ in _headings(document)][1:] == ["What grew", "What shrank"]
