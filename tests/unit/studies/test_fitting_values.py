"""The largest value of a field, with captures by hand where children would compile: what is asked and answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hlo import Step
from hlo_nodes import f32

from memprof.analysis.hlo.decoded import FreshCapture
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Role
from memprof.analysis.records.pool import Allocator, PoolSettings
from memprof.analysis.records.pressure import Pressure
from memprof.errors import MemprofError
from memprof.sources.jax.processes.task import Task
from memprof.sources.jax.targets.resolve import resolve
from memprof.studies.fit import value as fits
from memprof.studies.fit.budget import MemoryRequest
from memprof.studies.fit.results import FitResult, Trial
from memprof.studies.fit.search import NothingFitsError
from memprof.studies.fit.value import FitRequest, check_fit
from memprof.studies.subject import find_subject, request_digest

# Half of the memory, in an allocator that needs no single piece: so the pool is known to the byte.
HALF = PoolSettings(allocator=Allocator.VMM, mem_fraction=0.5)


def _capture(batch_size: object, field: str = "batch_size") -> Capture:
    """A step of 256 bytes of weights, 512 of optimizer state, 256 of a result, and 64 for each example."""
    step = Step()
    w = step.argument("params['w']", Role.PARAMS, f32(64))
    step.argument("opt_state.mu", Role.OPTIMIZER_STATE, f32(128))
    x = step.argument("batch['x']", Role.BATCH, f32(int(batch_size) if isinstance(batch_size, int) else 1, 16))
    step.result(step.op("out", "subtract", f32(64), [w, x], "jit(step)/op"))
    return replace(step.capture(), config={field: batch_size, "depth": 3, "is_deep": True})


def _request(subject: str = "mine.steps:step", *overrides: str, memory: str = "8KiB", **changed: object) -> FitRequest:
    request = FitRequest(
        subject=find_subject(subject, overrides=overrides),
        techniques="",
        field="batch_size",
        memory=MemoryRequest(target=resolve("l4"), memory=memory, reserve="0", pool=HALF),
    )
    return replace(request, **changed)


class _Fit:
    """One search, and everything that it compiled, kept and said."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, request: FitRequest, own_value: object = 8, field: str = "batch_size"
    ) -> None:
        self.kept: list[tuple[Capture, int | None]] = []
        self.said: list[str] = []

        def compiled(task: Task, *, progress: Callable[[str], None]) -> FreshCapture:
            progress("compile")
            values = dict(getattr(task.recipe, "overrides", ())) | dict(getattr(task.recipe, "config", {}))
            found = values.get(field, own_value)
            capture = _capture(int(found) if isinstance(found, str) else found, field)
            return FreshCapture(capture=replace(capture, target=task.target))

        monkeypatch.setattr(fits, "compile_in_child", compiled)
        self.result: FitResult = fits.fit(
            request, progress=self.said.append, keep=lambda capture, value: self.kept.append((capture, value))
        )


def test_the_answer_is_exact_and_every_compile_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    request = _request()
    found = _Fit(monkeypatch, request)
    result = found.result
    # Half of 8,192 bytes less 1,024 that do not grow: 48 examples of 64 bytes.
    assert (result.value, result.next_value, result.step, result.step_reason) == (48, 49, 1, "")
    assert (result.memory_bytes, result.budget_bytes, result.reserve_bytes) == (8192, 4096, 4096)
    assert result.command == "memprof run mine.steps:step --target l4 --set batch_size=48"
    assert (result.mesh, result.num_devices, result.larger) == ("", 1, None)
    # The part that does not grow is known after the first compile, so that the line from it leads to the answer.
    sizes = {trial.value: trial.footprint_bytes for trial in result.tried}
    assert sizes == {8: 1536, 48: 4096, 49: 4160}
    assert [trial.needed_bytes for trial in result.tried] == list(sizes.values())
    assert all(trial.pressure is trial.pressed_footprint_bytes is None for trial in result.tried)
    assert [value for _, value in found.kept] == [None, 48, 49]
    assert found.said == [
        "1. compile, batch_size as it is: compile",
        "2. compile, batch_size=48: compile",
        "3. compile, batch_size=49: compile",
    ]
    assert all(request.is_of_it(capture) for capture, _ in found.kept)
    assert not any(replace(request, techniques="bf16").is_of_it(capture) for capture, _ in found.kept)
    odd = replace(found.kept[0][0], config={"batch_size": True})
    assert request.is_of_it(odd)  # by the step as it is
    assert not request.is_of_it(replace(odd, request=request_digest(request.task(9))))


def test_a_larger_pool_has_room_for_a_larger_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The footprint is 1,024 bytes, and 64 for each example. With the user's own pool there is no other."""
    memory = MemoryRequest(target=resolve("l4"), memory="1GiB", reserve="0", pool=None)
    result = _Fit(monkeypatch, replace(_request(), memory=memory)).result
    assert result.budget_bytes == 0.75 * 2**30
    assert result.larger is not None
    assert result.larger.value > result.value
    assert result.larger.mem_fraction > 0.75
    assert result.larger.footprint_bytes == 1024 + 64 * result.larger.value
    assert _Fit(monkeypatch, replace(_request(), memory=replace(memory, pool=PoolSettings()))).result.larger is None


@pytest.mark.parametrize("field", ["a_field", "devices_of_mine", "length"])
def test_the_name_of_the_field_does_not_matter(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    result = _Fit(monkeypatch, _request(field=field), field=field).result
    assert (result.field, result.value, result.next_value, result.step) == (field, 48, 49, 1)
    assert [trial.value for trial in result.tried] == [8, 48, 49]
    assert result.command == f"memprof run mine.steps:step --target l4 --set {field}=48"


@pytest.mark.parametrize(
    ("own_value", "tried"),
    [(30, [30, 28, 48, 52]), (2, [2, 4, 48, 52]), (8, [8, 48, 52])],
    ids=["between two multiples", "below the first", "a multiple"],
)
def test_the_search_begins_at_a_multiple_of_the_step(
    monkeypatch: pytest.MonkeyPatch, own_value: int, tried: list[int]
) -> None:
    result = _Fit(monkeypatch, _request(techniques="accum4"), own_value).result
    assert [trial.value for trial in result.tried] == tried
    assert (result.value, result.next_value, result.step) == (48, 52, 4)
    assert result.step_reason == "accum4 splits the batch into 4 equal parts"
    assert result.techniques == ("accum4",)


@pytest.mark.parametrize(
    ("values", "limit", "step", "added"),
    [
        ((8, 1000), 500, 1, [504, 256, 380, 442, 473, 488]),  # six halvings and no more
        ((8, 20), 10, 4, [12]),
        ((30, 36), 31, 4, [34]),  # the own value is no multiple
        ((8, 12), 10, 4, []),
        ((8, 1000), 2000, 1, []),
    ],
)
def test_the_start_of_recomputation_is_narrowed_down(
    monkeypatch: pytest.MonkeyPatch, values: tuple[int, ...], limit: int, step: int, added: list[int]
) -> None:
    pressure = Pressure(planned_bytes=1, recomputed_values=1, recomputed_flops=1, footprint_without_limit_bytes=None)

    def compile_it(value: int) -> None:
        pressed = pressure if value > limit else None
        compiles.trials.append(Trial(value=value, footprint_bytes=1, seconds=0.0, needed_bytes=1, pressure=pressed))

    compiles = fits._Compiles(_request(), progress=print, keep=lambda *kept: None)
    monkeypatch.setattr(compiles, "add", compile_it)
    for value in values:
        compile_it(value)
    fits._narrow_recomputing(compiles, step=step)
    assert [trial.value for trial in compiles.trials] == [*values, *added]


def test_multiples_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _Fit(monkeypatch, _request(multiple_of=7)).result
    assert (result.value, result.next_value) == (42, 49)
    assert result.step_reason == "requested with --multiple-of 7"


@pytest.mark.parametrize(
    ("techniques", "step", "refusal"),
    [
        ("", 1, ""),
        ("accum3", 3, "others are not valid: batch_size is 1, but it must be a multiple of the 3 minibatches"),
    ],
)
def test_a_built_in_workload_says_what_it_takes(techniques: str, step: int, refusal: str) -> None:
    found, reason = fits._step(_request("mlp", techniques=techniques))
    assert (found, reason.partition(": change")[0]) == (step, refusal)


def test_where_not_even_the_smallest_fits_the_sums_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NothingFitsError) as caught:
        _Fit(monkeypatch, _request(memory="2174B"))  # half is one byte less than a batch of one takes
    assert str(caught.value).startswith(
        "not even batch_size=1 fits: params 256 + optimizer state 512 + everything else 320 = 1,088 bytes; does not fit"
    )
    assert _Fit(monkeypatch, _request(memory="2176B")).result.value == 1
    with pytest.raises(NothingFitsError, match=r"^the parameters alone do not fit: params 256 \+ "):
        _Fit(monkeypatch, _request(memory="510B"))
    with pytest.raises(NothingFitsError, match=r"^not even batch_size=1 fits"):
        _Fit(monkeypatch, _request(memory="512B"))  # the parameters alone fit to the byte


@pytest.mark.parametrize(
    ("field", "own_value", "sentence"),
    [
        ("batch_size", 0, "batch_size starts at 0; give it a value above zero with --set"),
        ("batch_size", True, "batch_size of step is True, not a whole number; vary another field"),
        ("batch_size", 0.5, "batch_size of step is 0.5, not a whole number; vary another field"),
        ("devices", 8, "step has no parameter devices: give the mesh whose first axis is to be varied"),
        ("bach_size", 8, "There is no number to vary in step"),
    ],
)
def test_a_field_that_cannot_be_varied_is_refused(
    monkeypatch: pytest.MonkeyPatch, field: str, own_value: object, sentence: str
) -> None:
    request = _request(field=field)
    request = replace(request, subject=replace(request.subject, label="step"))
    with pytest.raises(MemprofError) as caught:
        _Fit(monkeypatch, request, own_value)
    assert sentence in str(caught.value)


def test_mistakes_in_a_built_in_workload_are_found_without_a_compile() -> None:
    check_fit(_request("mlp"))
    with pytest.raises(MemprofError, match=r"^There is no number to vary in mlp"):
        check_fit(_request("mlp", field="hidden"))
    with pytest.raises(MemprofError, match=r"0\.001, not a whole number"):
        check_fit(_request("mlp", field="learning_rate"))


def test_one_is_the_least_value_that_can_be_varied(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _Fit(monkeypatch, _request(), 1).result.tried[0].value == 1
