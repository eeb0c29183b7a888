"""What was on the device beside a program, from samples by hand: 3 arrays of 100 bytes are the program's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator

from memprof.analysis.records.categories import Role
from memprof.analysis.records.watched import Ending, LiveArrays, LiveGroup, SeenCall, SeenCompile
from memprof.reports.formats.json import render_object
from memprof.reports.json.answers import schemas
from memprof.reports.json.runs import explanation_json, job_json
from memprof.studies.explain.explanation import explain
from memprof.studies.explain.log import read_log
from memprof.studies.watch.job import job_of
from memprof.studies.watch.moments import Growth, OtherArrays
from memprof.studies.watch.programs import Compiled

_CALL = SeenCall(
    id="1-0",
    function="train_step",
    place="train.py:9",
    jit=1,
    arguments={"params['w']": "float32[25]", "mu['w']": "float32[25]", "nu['w']": "float32[25]", "x": "float32[9]"},
    results=("float32[25]", "float32[25]", "float32[25]", "float32[]"),
    differentiates=True,
    updates=True,
)


def _live(seconds: float, **counts: int) -> LiveArrays:
    """So many arrays of 25, of 9 and of no elements."""
    types = {
        "state": ("float32[25]", 100, ""),
        "batch": ("float32[9]", 36, ""),
        "losses": ("float32[]", 4, "losses[...]"),
    }
    groups = [
        LiveGroup(type=types[name][0], count=count, size_bytes=count * types[name][1], holder=types[name][2])
        for name, count in counts.items()
    ]
    return LiveArrays(seconds=seconds, groups=tuple(groups))


def _compiled(live: LiveArrays) -> Compiled:
    return Compiled(
        seen=SeenCompile(name="jit_train_step", call="1-0", began=1.0, seconds=0.5, live=live),
        call=_CALL,
        folder=Path(),
        roles={Role.PARAMS: {"float32[25]": 1}, Role.OPTIMIZER_STATE: {"float32[25]": 2}},
        footprint_bytes=1000,
        live_peak_bytes=900,
    )


def test_arguments_of_the_program_are_not_beside_it() -> None:
    job = job_of("train.py", [_CALL], [_compiled(_live(1.0, state=3, batch=1))], [], None)
    assert job.moment is not None
    assert (job.moment.others, job.moment.size_bytes, job.moment.is_seen) == ((), 1000, True)
    assert job.programs[0].kind == "train step"


def test_what_makes_the_state_is_init_and_what_changes_it_is_not() -> None:
    makes = replace(_CALL, function="init", arguments={}, differentiates=False)
    halves = replace(makes, function="halve", arguments={"params['w']": "float32[25]"})
    compiled = [
        _compiled(_live(1.0)),
        *(replace(_compiled(_live(1.0)), call=call, roles={}) for call in (makes, halves)),
    ]
    job = job_of("train.py", [_CALL, makes, halves], compiled, [], None)
    assert {each.name: each.kind for each in job.programs} == {"train_step": "train step", "init": "init", "halve": ""}


def test_an_old_copy_of_the_state_is_beside_it() -> None:
    job = job_of("train.py", [_CALL], [_compiled(_live(1.0, state=6, batch=1))], [], None)
    assert job.moment is not None
    assert job.moment.others == (
        OtherArrays(type="float32[25]", count=3, size_bytes=300, what="like params['w'] and 2 more of train_step"),
    )
    assert job.moment.size_bytes == 1300


def test_what_a_running_program_has_just_returned_is_its_own() -> None:
    samples = [_live(5.0, state=6, batch=1)]
    job = job_of("train.py", [_CALL], [_compiled(_live(1.0, state=3, batch=1))], samples, None)
    assert job.moment is not None
    assert job.moment.size_bytes == 1000


def test_what_became_more_is_what_rises_from_sample_to_sample() -> None:
    samples = [_live(2.0 + number, state=3 + 3 * (number % 2), losses=10 * number) for number in range(1, 7)]
    job = job_of("train.py", [_CALL], [_compiled(_live(1.0, state=3))], samples, None)
    assert job.growth == (
        Growth(
            type="float32[]",
            from_count=10,
            to_count=60,
            grown_bytes=200,
            seconds=5.0,
            what="held by losses[...], like a result of train_step",
        ),
    )


def test_what_grew_most_comes_first() -> None:
    """Five times one batch of 36 bytes, and five times ten losses of 4 bytes."""
    samples = [_live(2.0 + number, batch=number, losses=10 * number) for number in range(1, 7)]
    job = job_of("train.py", [_CALL], [_compiled(_live(1.0, state=3))], samples, None)
    assert [(each.type, each.grown_bytes) for each in job.growth] == [("float32[]", 200), ("float32[9]", 180)]


@pytest.mark.parametrize(
    ("counts", "grows"),
    [((1, 2, 2, 3, 3, 4, 4), False), ((1, 2, 2, 3, 3, 4, 5), True), ((5, 6, 7, 8, 9, 2, 3), False)],
    ids=["in half of the steps", "in more than half", "and falls again"],
)
def test_growth_is_a_rise_in_more_than_half_of_the_steps(counts: tuple[int, ...], grows: bool) -> None:
    samples = [_live(2.0 + number, losses=count) for number, count in enumerate(counts)]
    job = job_of("train.py", [_CALL], [_compiled(_live(1.0, state=3))], samples, None)
    assert bool(job.growth) == grows


def test_the_json_of_a_job_keeps_to_its_schema_and_has_the_explanation_of_what_died() -> None:
    error = "RESOURCE_EXHAUSTED: Out of memory allocating 1000 bytes."
    ending = Ending(error=error, is_out_of_memory=True, live=_live(9.0, state=6))
    job = job_of("train.py", [_CALL], [_compiled(_live(1.0, state=6, batch=1))], [], ending)
    explanation = explanation_json(explain(read_log(error), []), ("too large",))
    found = msgspec.json.decode(render_object(job_json(job, exit_code=1, explanation=explanation)))
    Draft202012Validator(schemas()["job"]).validate(found)
    (program,) = found["programs"]
    assert (program["name"], program["num_compiles"], program["state"]) == ("train_step", 1, {"float32[25]": 1})
    assert (found["moment"]["size_bytes"], found["moment"]["others"][0]["count"]) == (1000 + 300, 3)
    assert (found["ending"]["is_out_of_memory"], found["explanation"]["asked_bytes"]) == (True, 1000)
