"""A job from the files that a watched script leaves: its programs, what each is for, and their captures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from added_up_step import added_up_step

from memprof.analysis.records.capture import Capture, CodeFolders
from memprof.analysis.records.categories import Role
from memprof.analysis.records.watched import Ending, LiveArrays, LiveGroup, SeenCall, SeenCompile
from memprof.errors import MemprofError
from memprof.sources.capture_file import encoded_without_program, is_same, write_capture
from memprof.sources.jax.processes.handover import Handover
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.watching import records
from memprof.studies.watch import for_target
from memprof.studies.watch.programs import Compiled, programs_of, type_of
from memprof.studies.watch.reading import CAPTURE_FILE, capture_of, read_job

# Of `added_up_step`: three arguments of 16 bytes, a constant of 8, a result of 4 and 72 of temporaries. Of these dx, 8
# bytes, is made after the peak.
_SIZES = (132, 124)
_CALL = SeenCall(id="7-1", function="train_step", place="train.py:9", jit=1, arguments={"x": "float32[4]"})


def _leave(
    folder: Path, number: int, call: SeenCall | None, *, has_plan: bool = True, is_followed: bool = True
) -> None:
    """What a script leaves of one compile."""
    capture = added_up_step().capture()
    place = folder / records.COMPILING.format(f"7-{number}")
    (place / "dump").mkdir(parents=True)
    if has_plan:
        (place / "dump" / f"module_{number:04}.jit_f.gpu_after_optimizations.hlo.pb").write_bytes(capture.hlo_proto)
    seen = SeenCompile(name="jit_f", call=None if call is None else call.id, began=float(number), seconds=0.5)
    records.write(place / records.COMPILE, seen)
    if call is not None:
        records.write(folder / records.CALL.format(call.id), call)
        if is_followed:
            handover = Handover(
                lowered=encoded_without_program(replace(capture, folders=CodeFolders())),
                search_path=(),
                plan=None,
                cache_key="",
            )
            (folder / records.STEP.format(call.id)).write_bytes(msgspec.msgpack.encode(handover))


def test_a_job_is_read_from_its_folder(tmp_path: Path) -> None:
    _leave(tmp_path, 3, None)
    _leave(
        tmp_path, 2, replace(_CALL, id="7-2", function="evaluate", not_followed="it has no roles"), is_followed=False
    )
    _leave(tmp_path, 1, _CALL)
    live = LiveArrays(seconds=1.5, groups=(LiveGroup(type="float32[4]", count=2, size_bytes=32),))
    (tmp_path / records.LIVE).write_bytes(msgspec.json.encode(live) + b'\n{"seconds": 2')
    ending = Ending(error="", live=live)
    records.write(tmp_path / records.END, ending)
    job = read_job(tmp_path, "train.py", exit_code=0)
    assert [program.name for program in job.programs] == ["train_step", "evaluate"]
    (followed,), (unfollowed,) = (program.compiles for program in job.programs)
    assert (followed.footprint_bytes, followed.live_peak_bytes) == _SIZES
    assert followed.roles == {
        Role.PARAMS: {"float32[4]": 1}, Role.OPTIMIZER_STATE: {"float32[4]": 1}, Role.BATCH: {"float32[4]": 1},
    }  # fmt: skip
    assert unfollowed.roles == {}
    assert [each.call for each in job.of_jax] == [None]
    assert job.not_followed == {"evaluate": "it has no roles"}
    assert job.ending == ending
    assert job.moment is not None
    assert job.moment.seconds == 1.5


def test_a_compile_without_a_plan_has_no_sizes(tmp_path: Path) -> None:
    _leave(tmp_path, 1, _CALL, has_plan=False)
    job = read_job(tmp_path, "train.py", exit_code=0)
    (compiled,) = job.programs[0].compiles
    assert (compiled.footprint_bytes, compiled.live_peak_bytes, job.moment, job.ending) == (None, None, None, None)
    with pytest.raises(MemprofError):
        capture_of(compiled, tmp_path)


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_capture_has_the_roles_of_a_call_that_was_followed(tmp_path: Path, is_followed: bool) -> None:
    _leave(tmp_path, 1, _CALL, is_followed=is_followed)
    (program,) = read_job(tmp_path, "train.py", exit_code=0).programs
    capture = capture_of(program.largest, tmp_path).capture
    assert capture.hlo_proto == added_up_step().capture().hlo_proto
    assert (capture.timings.compile_seconds == 0.5) == is_followed
    assert (added_up_step().capture().label == capture.label) == is_followed


_W, _X = "float32[25]", "float32[9]"


def _compiled(number: int, roles: dict[Role, dict[str, int]], size: int | None = 10, **call: object) -> Compiled:
    seen_call = replace(_CALL, id=str(number), **call)  # type: ignore[arg-type]
    return Compiled(
        seen=SeenCompile(name="jit_f", call=seen_call.id, began=float(number), seconds=1.5),
        call=seen_call,
        folder=Path(),
        roles=roles,
        footprint_bytes=size,
        live_peak_bytes=size,
    )


def test_what_a_program_is_for_is_told_by_its_arguments_and_results() -> None:
    params, state = {Role.PARAMS: {_W: 2}}, {Role.PARAMS: {_W: 2}, Role.OPTIMIZER_STATE: {_W: 4}}
    two, weak = (_W, _W), f"{_W} (weak type)"
    found = programs_of(
        [
            _compiled(1, state, 90, function="train", differentiates=True, updates=True, results=two),
            _compiled(2, params, 80, function="grad", differentiates=True, results=two),
            _compiled(3, state, 70, function="apply", results=two),
            _compiled(4, params, 60, function="evaluate", results=two),
            _compiled(5, state, 50, function="half", results=(_W,)),
            _compiled(6, {}, 40, function="init", arguments={"key": _X}, results=two),
            _compiled(7, {}, 30, function="copy", arguments={"a": weak, "b": _W}, results=two),
            _compiled(8, {}, 20, function="small_init", arguments={"a": _W}, results=(_W,)),
            _compiled(9, {}, None, function="other", results=(_X,)),
            _compiled(10, {}, 95, function="other", results=(_X,)),
        ]
    )
    assert {program.name: program.kind for program in found} == {
        "other": "", "train": "train step", "grad": "gradients", "apply": "update", "evaluate": "eval step",
        "half": "eval step", "init": "init", "copy": "", "small_init": "",
    }  # fmt: skip
    assert [program.name for program in found][:2] == ["other", "train"]  # by the largest of their compiles
    assert (found[0].largest.footprint_bytes, found[0].seconds) == (95, 3.0)
    assert type_of(weak) == _W


def test_without_a_backward_pass_nothing_is_known_to_be_trained() -> None:
    (only,) = programs_of([_compiled(1, {}, arguments={}, results=(_W,))])
    assert only.kind == ""


def test_what_a_script_has_left_is_compiled_for_another_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _leave(tmp_path, 1, _CALL, has_plan=False)
    _leave(tmp_path, 2, replace(_CALL, id="7-2", function="evaluate"), has_plan=False)
    for number in (1, 2):
        (tmp_path / f"compile-7-{number}" / "dump").rmdir()
    made = added_up_step().capture()
    made = replace(made, refusal="it does not fit", timings=replace(made.timings, cached_compile_seconds=2.5))

    def compiled(folder: Path, seen: SeenCompile, place: Path) -> Capture:
        if seen.call == "7-2":
            raise MemprofError("out of luck")
        return made

    monkeypatch.setattr(for_target, "_compiled_for_target", compiled)
    said: list[str] = []
    (error,) = for_target.compile_for_target(tmp_path, said.append)
    assert (str(error), said) == ("out of luck", ["jit_f", "jit_f"])
    trained, evaluated = read_job(tmp_path, "train.py", exit_code=0).programs
    assert (trained.largest.footprint_bytes, trained.seconds, trained.largest.seen.failed) == (132, 1.5, "")
    found = capture_of(trained.largest, tmp_path).capture
    assert is_same(found, replace(made, pool=found.pool))
    assert (found.timings, found.file) == (made.timings, None)
    assert (evaluated.largest.footprint_bytes, evaluated.largest.seen.failed) == (None, "out of luck")


def test_a_program_for_a_tpu_is_measured_by_the_memory_spaces_of_a_tpu(tmp_path: Path) -> None:
    _leave(tmp_path, 1, _CALL, has_plan=False)
    proto = added_up_step().proto()
    (constant,) = (each for each in proto.buffer_assignment.buffer_allocations if each.is_constant)
    constant.color = 1  # VMEM; a GPU counts such memory
    capture = replace(added_up_step().capture(), hlo_proto=proto.SerializeToString(), target=resolve("v5e"))
    write_capture(capture, tmp_path / "compile-7-1" / CAPTURE_FILE)
    (program,) = read_job(tmp_path, "train.py", exit_code=0).programs
    assert (program.largest.footprint_bytes, program.largest.live_peak_bytes) == (132 - 8, 124 - 8)
