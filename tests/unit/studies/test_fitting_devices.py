"""The smallest number of devices: the search in few measurements, and a fit on meshes with compiles made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hlo import Step
from hlo_nodes import f32
from jsonschema import Draft202012Validator

from memprof.analysis.hlo.decoded import FreshCapture
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Role
from memprof.analysis.records.pool import Allocator, PoolSettings
from memprof.errors import MemprofError
from memprof.reports.formats import terminal
from memprof.reports.formats.json import render_object
from memprof.reports.json.answers import fit_json
from memprof.reports.options import RenderOptions
from memprof.reports.views.fit import fit_document
from memprof.sources.jax.processes.task import Task
from memprof.sources.jax.targets.resolve import resolve_asked
from memprof.studies.fit import value as fits
from memprof.studies.fit.budget import MemoryRequest
from memprof.studies.fit.devices import Fewest, find_fewest, numbers_of_devices, of_devices
from memprof.studies.fit.results import Batch, FitResult, batch_of
from memprof.studies.fit.search import NothingFitsError
from memprof.studies.fit.value import FitRequest
from memprof.studies.subject import find_subject

SCHEMAS = Path(__file__).parents[3] / "docs" / "schema"


@pytest.mark.parametrize("replicated", [0, 10, 90])
@pytest.mark.parametrize("divided", [1, 1000, 10**6])
@pytest.mark.parametrize("start", [2, 8, 1024])
def test_the_search_finds_what_trying_all_finds_in_few_measurements(replicated: int, divided: int, start: int) -> None:
    numbers, tried = numbers_of_devices(start, least=2), []

    def measure(number: int) -> int:
        tried.append(number)
        return replicated + divided // number

    fitting = [number for number in numbers if replicated + divided // number <= 100]
    if not fitting:
        with pytest.raises(NothingFitsError, match="not even 4096 devices are enough"):
            find_fewest(measure, numbers=numbers, start=start, budget_bytes=100)
        return
    found = find_fewest(measure, numbers=numbers, start=start, budget_bytes=100)
    assert found == Fewest(number=fitting[0], below=fitting[0] // 2 if fitting[0] > 2 else None)
    assert len(tried) == len(set(tried)) <= 5


def _up_to(most: int, least: int = 1) -> Callable[[int], int]:
    def measure(number: int) -> int:
        if not least <= number <= most:
            raise MemprofError(f"{number} does not divide the batch")
        return 800 // number

    return measure


def test_numbers_that_the_step_cannot_be_compiled_for_end_the_search() -> None:
    numbers = numbers_of_devices(8)
    found = find_fewest(_up_to(64, least=4), numbers=numbers, start=8, budget_bytes=1000)
    assert found == Fewest(number=4, below=None, refusal="2 does not divide the batch")
    with pytest.raises(NothingFitsError, match="not even 16 devices are enough: each needs 50 bytes; 32 does not"):
        find_fewest(_up_to(16), numbers=numbers, start=8, budget_bytes=40)
    with pytest.raises(MemprofError, match="8 does not divide the batch"):
        find_fewest(_up_to(4), numbers=numbers, start=8, budget_bytes=1000)


def test_the_number_that_should_fit_to_the_byte_is_measured_next() -> None:
    """8 devices take 100 bytes each: 4 of them should take 200, which the budget holds."""
    measured: list[int] = []

    def measure(number: int) -> int:
        measured.append(number)
        return 800 // number

    found = find_fewest(measure, numbers=numbers_of_devices(8), start=8, budget_bytes=200)
    assert (found.number, found.below, measured) == (4, 2, [8, 4, 2])


@pytest.mark.parametrize(
    ("start", "budget_bytes", "exponent", "path"),
    [
        (1, 130, 1, [1, 64, 512, 256]),  # one measurement: all is divided; two: 100 bytes are not, so 8000 / 30 devices
        (64, 200, 1, [64, 128]),
        (512, 1300, 1, [512, 64, 8, 4]),
        (4096, 4000, 0.6, [4096, 256, 32, 8, 4, 2]),  # the two nearest to the budget tell more than the first two
    ],
)
def test_two_measurements_tell_what_is_divided(start: int, budget_bytes: int, exponent: float, path: list[int]) -> None:
    """A device holds 100 bytes of its own and its share of 8,000, or more than that."""
    measured: list[int] = []

    def measure(number: int) -> int:
        measured.append(number)
        return 100 + int(8000 / number**exponent)

    find_fewest(measure, numbers=numbers_of_devices(512), start=start, budget_bytes=budget_bytes)
    assert measured == path


@pytest.mark.parametrize(
    ("start", "unit", "least", "smallest"),
    [(8, 1, 1, 1), (8, 1, 2, 2), (8, 1, 3, 4), (12, 1, 4, 6), (12, 1, 1, 3), (12, 3, 1, 3), (8, 8, 1, 8), (7, 1, 1, 7)],
)
def test_numbers_are_halved_down_to_the_least_and_doubled_up_to_the_most(
    start: int, unit: int, least: int, smallest: int
) -> None:
    numbers = numbers_of_devices(start, unit=unit, least=least)
    assert numbers[0] == smallest
    assert all(after == 2 * before for before, after in pairwise(numbers))
    assert start in numbers
    assert numbers[-1] <= 4096 < 2 * numbers[-1]


def test_the_first_axis_grows_and_the_hosts_with_it() -> None:
    target = resolve_asked("l4", mesh="fsdp=4,tp=2", hosts=2)
    assert target is not None
    assert numbers_of_devices(8, unit=2, least=2)[:3] == (2, 4, 8)
    larger, smaller = (of_devices(target, number).topology for number in (32, 2))
    assert (larger.num_devices, larger.num_hosts, dict(larger.axes)) == (32, 8, {"fsdp": 16, "tp": 2})
    assert (smaller.num_devices, smaller.num_hosts, dict(smaller.axes)) == (2, 1, {"fsdp": 1, "tp": 2})
    unnamed = resolve_asked("l4", mesh="8")
    assert unnamed is not None
    assert of_devices(unnamed, 16).topology.num_devices == 16


def _compiled(task: Task, **_: object) -> FreshCapture:
    """A step whose weights of 4,096 bytes and batch of 64 bytes an example are divided over all devices."""
    assert task.target is not None
    overrides = dict(getattr(task.recipe, "overrides", ()))
    batch_size, num_devices = int(overrides.get("batch_size", 64)), task.target.topology.num_devices
    if num_devices > 16:
        raise MemprofError(f"{num_devices} devices are too many.")
    step = Step()
    w = step.argument("w", Role.PARAMS, f32(1024 // num_devices))
    x = step.argument("x", Role.BATCH, f32(batch_size // num_devices, 16))
    step.result(step.op("out", "subtract", f32(1024 // num_devices), [w, x], "jit(step)/op"))
    made = step.capture()
    whole = {"w": (1024,), "x": (batch_size, 16)}
    arguments = [
        replace(leaf, shape=whole[leaf.path], size_bytes=leaf.size_bytes * num_devices) for leaf in made.arguments
    ]
    capture = replace(made, target=task.target, arguments=tuple(arguments), config={"batch_size": batch_size})
    return FreshCapture(capture=capture)


def _text(result: FitResult) -> str:
    return terminal.lower(fit_document(result), RenderOptions(width=200))


# Half of the memory, in an allocator that needs no single piece: so the pool is known to the byte.
HALF = PoolSettings(allocator=Allocator.VMM, mem_fraction=0.5)


def _fit(monkeypatch: pytest.MonkeyPatch, field: str, memory: str) -> FitResult:
    monkeypatch.setattr(fits, "compile_in_child", _compiled)
    wanted = MemoryRequest(target=resolve_asked("l4", mesh="fsdp=8"), memory=memory, reserve="0", pool=HALF)
    request = FitRequest(subject=find_subject("mine.steps:step"), techniques="", field=field, memory=wanted)
    return fits.fit(request, progress=lambda stage: None, keep=lambda capture, value: None)


def test_a_batch_is_told_in_all_and_on_each_device_and_stays_divisible(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _fit(monkeypatch, "batch_size", "20KiB")
    # A device holds 512 bytes of the weights, 512 of the result, and 64 for each of its examples: 144 of them.
    assert (result.value, result.next_value, result.step) == (1152, 1160, 8)
    assert result.step_reason == "the batch is divided over 8 devices"
    text = _text(result)
    assert "1152 in all · 144 on each of 8 devices" in text
    assert "mesh fsdp=8" in text
    found = json.loads(render_object(fit_json(result)))
    Draft202012Validator(json.loads((SCHEMAS / "fit.schema.json").read_text())).validate(found)
    assert found["batch"] == {"in_all": 1152, "on_a_device": 144}


def test_the_fewest_devices_are_told_with_their_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _fit(monkeypatch, "devices", "12KiB")
    # Weights, result and batch of 4,096 bytes each: 6,144 on each of two devices fit to the byte.
    assert (result.value, result.next_value, result.mesh) == (2, None, "fsdp=2")
    found = json.loads(render_object(fit_json(result)))
    Draft202012Validator(json.loads((SCHEMAS / "fit_devices.schema.json").read_text())).validate(found)
    assert (found["num_devices"], found["footprint_bytes"], found["next_num_devices"]) == (2, 6144, None)
    assert found["command"].endswith("--target l4 --mesh fsdp=2")
    result = _fit(monkeypatch, "devices", "12287B")
    assert (result.value, result.next_value) == (4, 2)
    assert "devices=4 fits, 2 does not" in _text(result)
    with pytest.raises(
        NothingFitsError, match="not even 16 devices are enough: each needs 768 bytes; 32 devices are too many;"
    ):
        _fit(monkeypatch, "devices", "16B")


@pytest.mark.parametrize(
    ("shapes", "batch"),
    [
        ([(8, 3), (8, 5)], Batch(in_all=8, on_a_device=8)),  # axes after the first may differ
        ([(8,)], Batch(in_all=8, on_a_device=8)),
        ([(8, 3), (4, 3)], None),
        ([()], None),
        ([], None),
    ],
)
def test_the_batch_is_the_first_axis_of_all_that_it_holds(shapes: list[tuple[int, ...]], batch: Batch | None) -> None:
    step = Step()
    w = step.argument("w", Role.PARAMS, f32(4))
    inputs = [step.argument(f"x{number}", Role.BATCH, f32(*shape)) for number, shape in enumerate(shapes)]
    step.result(step.op("out", "subtract", f32(4), [w, *inputs], "jit(step)/op"))
    assert batch_of(analyze(step.capture())) == batch
