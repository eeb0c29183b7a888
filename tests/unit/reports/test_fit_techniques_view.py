"""What a fit over techniques shows: the answer, its change of code, and everything that was tried."""

from __future__ import annotations

from dataclasses import replace

from memprof.reports.document import Cell, Heading, Note, Table
from memprof.reports.json.answers import fit_techniques_json
from memprof.reports.views.fit import techniques_document
from memprof.studies.fit.cheapest import Cost
from memprof.studies.fit.results import CodeChange, TechniquesResult, TriedTechniques
from memprof.studies.fit.techniques import cheapest_first

DONATE = TriedTechniques(techniques=("donate",), cost=Cost(), footprint_bytes=800, seconds=2.0)
PLAIN = TriedTechniques(techniques=(), cost=Cost(), footprint_bytes=1000, seconds=1.0)
BROKEN = TriedTechniques(techniques=("bf16",), cost=Cost(effort=1), footprint_bytes=None, problem="it broke")
RESULT = TechniquesResult(
    subject="mlp",
    settings="tiny, batch_size=8",
    target="l4",
    memory_bytes=1000,
    budget_bytes=940,
    ranked=(DONATE,),
    others=(PLAIN, BROKEN),
    num_combinations=8,
    num_inferred=2,
    left_out={"remat": "It does not apply."},
    contradictions=("bf16 holds more than the baseline, though it was expected to hold less",),
    changes=(CodeChange(technique="donate", sentence="Donate the state.", code="jax.jit(f, donate_argnums=(0,))"),),
    command="memprof run mlp -t donate",
)


def _blocks(result: TechniquesResult, kind: type) -> list:
    return [block for block in techniques_document(result).blocks if isinstance(block, kind)]


def _rows(result: TechniquesResult) -> list[tuple[str, ...]]:
    (table,) = _blocks(result, Table)
    return [tuple(cell.text for cell in row.cells if isinstance(cell, Cell)) for row in table.rows]


def test_the_answer_comes_first_and_a_failure_has_no_numbers() -> None:
    headings = [(each.text, each.aside) for each in _blocks(RESULT, Heading)]
    assert headings[0] == ("donate fits", "mlp tiny, batch_size=8")
    assert headings[-1] == ("Tried", "3 of 8 combinations compiled")
    assert _rows(RESULT) == [
        ("donate", "800 B", "-140 B", "yes", "0 FLOP", "0 B", "2.0 s"),
        ("baseline", "1000 B", "+60 B", "no", "0 FLOP", "0 B", "1.0 s"),
        ("bf16", "", "", "failed", "", "", ""),
    ]


def test_the_change_of_code_and_what_was_not_compiled_are_told() -> None:
    notes = [note.text for note in _blocks(RESULT, Note)]
    assert notes[:2] == ["donate: Donate the state.", "jax.jit(f, donate_argnums=(0,))"]
    for fragment in (
        "2 cheaper combinations were not compiled",
        "bf16 failed: it broke",
        "remat was left out",
    ):
        assert any(fragment in note for note in notes)
    assert notes[-1] == "Profile it with: memprof run mlp -t donate"


def test_where_nothing_fits_the_smallest_is_shown() -> None:
    nothing = replace(RESULT, ranked=(), others=(PLAIN, BROKEN), changes=(), command="")
    assert _blocks(nothing, Heading)[0].text == "no combination of techniques fits"
    assert nothing.smallest is PLAIN
    assert fit_techniques_json(nothing).answer is None
    assert fit_techniques_json(nothing).command is None


def test_what_does_not_apply_is_not_said() -> None:
    """The step fits as it is: nothing was left out, inferred or contradicted, and there was no other combination."""
    alone = replace(
        RESULT,
        ranked=(replace(PLAIN, footprint_bytes=900),),
        others=(),
        num_combinations=1,
        num_inferred=0,
        left_out={},
        contradictions=(),
        changes=(),
        command="",
    )
    assert [each.text for each in _blocks(alone, Heading)] == ["the step fits without techniques", "Tried"]
    assert _blocks(alone, Note) == []
    two = replace(alone, num_combinations=2)
    assert [each.text for each in _blocks(two, Note)] == [
        "Combinations of equal or higher cost were not compiled either, except those in the table."
    ]
    nothing = replace(two, ranked=(), others=(PLAIN,))
    assert _blocks(nothing, Note) == []


def test_steps_have_a_column_where_they_were_run() -> None:
    timed = replace(RESULT, ranked=(replace(DONATE, step_seconds=0.5),))
    assert _rows(timed)[0][4] == "500 ms"
    assert fit_techniques_json(timed).tried[0].step_seconds == 0.5


def test_another_optimizer_is_warned_of() -> None:
    other = replace(DONATE, techniques=("opt=adafactor",), cost=Cost(changes_training=True))
    notes = [note.text for note in _blocks(replace(RESULT, ranked=(other,)), Note)]
    assert any("changes training" in note for note in notes)


def test_a_bound_on_time_has_a_column_where_there_is_one() -> None:
    bounded = replace(RESULT, ranked=(replace(DONATE, at_least_seconds=0.025),))
    assert [row[4] for row in _rows(bounded)] == ["25.0 ms", "", ""]
    assert fit_techniques_json(bounded).tried[0].at_least_seconds == 0.025
    assert any("roofline bound" in note.text for note in _blocks(bounded, Note))


def test_of_those_that_fit_the_fastest_by_its_bound_comes_first() -> None:
    slow = replace(DONATE, techniques=("remat",), at_least_seconds=0.03)
    fast = replace(DONATE, techniques=("bf16",), at_least_seconds=0.02, cost=Cost(recomputed_flops=5, effort=1))
    other = replace(DONATE, techniques=("opt=adafactor",), at_least_seconds=0.01, cost=Cost(changes_training=True))
    assert cheapest_first([slow, other, fast]) == [fast, slow, other]
    assert cheapest_first([fast, replace(slow, at_least_seconds=None)])[0].techniques == ("remat",)
