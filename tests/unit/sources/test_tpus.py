"""The catalogue of TPUs, the slices that their chips form, and the compiler for them. Needs no libtpu."""

from __future__ import annotations

import time
from functools import partial
from math import prod
from pathlib import Path

import pytest

from memprof.analysis.hlo.hlo_proto import MemoryReport
from memprof.analysis.memory.verdict import judge
from memprof.analysis.records.capture import Target, Topology
from memprof.analysis.records.device_family import all_families, family_of
from memprof.analysis.records.pool import Answer, Pieces, PoolSettings
from memprof.errors import MemprofError
from memprof.sources.jax.planning import plan_key
from memprof.sources.jax.targets import choose
from memprof.sources.jax.targets.resolve import resolve, resolve_asked
from memprof.sources.jax.targets.tpu import compiler as libtpu
from memprof.sources.jax.targets.tpu.catalogue import host_bounds, tpu_of_kind, tpus
from memprof.sources.jax.xla.plan import compile_to_plan, refusal
from memprof.sources.jax.xla.portable_program import PortableProgram

pytestmark = pytest.mark.with_one_jax

GIB = 1 << 30
MIB = 1 << 20


def test_the_facts_of_each_tpu_hold_together() -> None:
    assert list(tpus()) == ["v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x"]
    for tpu in tpus().values():
        assert tpu.memory_bytes % GIB == 0
        assert tpu.reserved_bytes % MIB == 0
        assert 0 < tpu.reserved_bytes < tpu.memory_bytes // 10
        assert tpu.chip_bytes["smem"] < tpu.chip_bytes["vmem"] < tpu.memory_bytes
        assert tpu.dimensions in (2, 3)
        assert tpu_of_kind(tpu.description) is tpu
        peaks = tpu.operations_per_second
        assert peaks["bf16"] <= peaks.get("f8", peaks["bf16"])
        assert peaks["bf16"] < peaks.get("s8", 2 * peaks["bf16"])


def test_a_tpu_is_a_target_whose_pool_is_its_memory_less_what_its_runtime_keeps() -> None:
    target = resolve("V5E")
    assert (target.platform, target.description, target.is_deviceless) == ("tpu", "TPU v5 lite", True)
    assert (target.memory_bytes, target.usable_bytes) == (16 * GIB, 16 * GIB - 258 * MIB)
    assert target.topology == Topology()


@pytest.mark.parametrize(
    ("name", "mesh", "chips", "num_hosts"),
    [
        ("v5e", "2", (1, 2), 1),
        ("v5e", "4", (2, 2), 1),
        ("v5e", "8", (2, 4), 2),
        ("v5e", "256", (16, 16), 64),
        ("v6e", "fsdp=4,tp=2", (2, 4), 2),
        ("v5p", "4", (2, 2, 1), 1),
        ("v5p", "16", (2, 2, 4), 4),
        ("v5p", "256", (4, 8, 8), 64),
        ("tpu7x", "2", (1, 1, 1), 1),
        ("tpu7x", "8", (2, 2, 1), 1),
        ("v3", "32", (4, 4), 4),
    ],
)
def test_the_number_of_devices_gives_the_slice(name: str, mesh: str, chips: tuple[int, ...], num_hosts: int) -> None:
    target = resolve_asked(name, mesh=mesh)
    assert target is not None
    assert (target.topology.chips, target.topology.num_hosts) == (chips, num_hosts)
    assert prod(chips) * tpus()[name].cores == target.topology.num_devices


def test_a_slice_can_be_given_and_there_can_be_several() -> None:
    alone = resolve_asked("v5e", chips="2x4")
    assert alone is not None
    assert (alone.topology.num_devices, alone.topology.chips) == (8, (2, 4))
    both = resolve_asked("v5p", mesh="fsdp=32", chips="2x2x4", slices=2)
    assert both is not None
    assert (both.topology.num_devices, both.topology.num_slices, both.topology.num_hosts) == (32, 2, 8)
    divided = resolve_asked("v5e", mesh="fsdp=16", slices=2)
    assert divided is not None
    assert divided.topology.chips == (2, 4)


@pytest.mark.parametrize(
    ("name", "asked", "message"),
    [
        ("v5e", {"chips": "2x2x2"}, "has 2 dimensions, but --topology 2x2x2 has 3"),
        ("v5e", {"chips": "2x2", "mesh": "8"}, "has 4 devices, but the mesh has 8 per slice"),
        ("v5e", {"chips": "2by2"}, "is not a topology"),
        ("v5e", {"chips": "0x2"}, "is not a topology"),
        ("v5e", {"slices": 2}, "divides the devices of a mesh"),
        ("v5e", {"slices": 3, "mesh": "8"}, "not divided evenly by 3 slices"),
        ("tpu7x", {"mesh": "3"}, "3 are not a whole number of chips"),
        ("l4", {"chips": "2x4"}, "--topology 2x4 applies to TPUs"),
    ],
)
def test_a_slice_that_cannot_be_is_one_sentence(name: str, asked: dict[str, str | int], message: str) -> None:
    with pytest.raises(MemprofError, match=message):
        resolve_asked(name, **asked)  # type: ignore[arg-type]


def test_a_host_has_two_by_two_chips_where_the_slice_is_divided_by_that() -> None:
    assert host_bounds((2, 4)) == host_bounds((16, 16)) == host_bounds((2, 2, 4)) == (2, 2, 1)
    assert (host_bounds((1, 1)), host_bounds((1, 3)), host_bounds((2, 1, 1))) == ((1, 1, 1), (1, 3, 1), (2, 1, 1))


def test_without_libtpu_one_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libtpu, "libtpu_version", lambda: None)
    with pytest.raises(MemprofError) as caught:
        choose.deviceless_devices(resolve("v5e"))
    assert str(caught.value) == (
        "compiling for v5e without the device needs libtpu; install it with"
        ' pip install "jax-memprof[tpu]", or use --target cpu'
    )


def test_a_plan_is_that_of_its_libtpu_and_its_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(chips: str) -> str:
        target = resolve_asked("v5e", chips=chips)
        assert target is not None
        return plan_key(PortableProgram(module=b"module", compile_options=b""), target, {})

    monkeypatch.setattr(libtpu, "_library", lambda: None)
    versions = iter(("libtpu 1", "libtpu 1", "libtpu 1", "libtpu 2"))
    monkeypatch.setattr(libtpu, "libtpu_version", lambda: next(versions))
    first, again, other_slice, other_version = key("2x4"), key("2x4"), key("1x8"), key("2x4")
    assert first == again
    assert len({first, other_slice, other_version}) == 3


def test_a_refusal_is_the_sentence_of_the_compiler_alone() -> None:
    sentence = "Ran out of memory on HBM, the total memory required for HLO temporaries (68.24G) exceeds available HBM"
    said = f"RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: {sentence} (15.75G).\nSee https://openxla.org/xla/errors"
    assert refusal(RuntimeError(said)) == f"{sentence} (15.75G)."
    assert refusal(RuntimeError("RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory")) == (
        "Ran out of memory"
    )
    assert refusal(RuntimeError("INTERNAL: Ran out of memory")) == ""
    assert refusal(RuntimeError("RESOURCE_EXHAUSTED: too many requests")) == ""


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (
            "E1001: CompileTimeScopedVmemOom:\nRan out of memory in memory space vmem while allocating on stack for"
            ' %add.1 = f32[8,128]{1,0:T(8,128)} custom-call(%x), backend_config={"a":"b = c"}. Scoped allocation with'
            " size 24.00M and limit 16.00M exceeded scoped vmem limit by 8.00M. It should not be possible to run out"
            " of scoped vmem - \nSee https://openxla.org/xla/errors/error_1001",
            "Ran out of memory in memory space vmem while allocating on stack for %add.1. Scoped allocation with size"
            " 24.00M and limit 16.00M exceeded scoped vmem limit by 8.00M",
        ),
        (
            "XLA:TPU compile permanent error. Ran out of memory in memory space vmem. Used 96.00M of 63.94M vmem."
            " Exceeded vmem capacity by 32.06M.\n\nProgram vmem requirement 96.00M:\n    scoped",
            "Ran out of memory in memory space vmem. Used 96.00M of 63.94M vmem. Exceeded vmem capacity by 32.06M.",
        ),
        (
            "Allocation (size=134217728) would exceed memory (size=67108864) :: #allocation3 [shape = 'u8[134217728]']",
            "Allocation (size=134217728) would exceed memory (size=67108864)",
        ),
    ],
)
def test_the_sentences_about_memory_on_the_chip_are_refusals(message: str, sentence: str) -> None:
    assert refusal(RuntimeError(f"RESOURCE_EXHAUSTED: {message}")) == sentence


def test_a_number_of_a_memory_space_means_what_its_family_says() -> None:
    tpu, gpu, cpu = map(family_of, ("tpu", "cuda", "cpu"))
    assert (tpu.space_of(0), tpu.space_of(1), tpu.space_of(9)) == ("hbm", "vmem", "space 9")
    assert {gpu.space_of(1), gpu.space_of(7), cpu.space_of(0)} == {"hbm"}
    assert {each.space_of(5) for each in all_families()} == {"host"}
    assert family_of("unknown").platform == "unknown"


def _dump(folder: Path, device_bytes: int) -> None:
    folder.mkdir()
    space = MemoryReport()
    space.spaces.add(total_bytes=device_bytes, color=0)
    (folder / "module_0001.jit_step.after_optimizations.hlo.pb").write_bytes(b"plan")
    (folder / "module_0001.jit_step.after_optimizations-memory-usage-report.pb").write_bytes(space.SerializeToString())


def test_a_refusal_is_waited_for_once_the_plan_is_larger_than_the_device(tmp_path: Path) -> None:
    def compile_step(name: str, device_bytes: int) -> None:
        _dump(tmp_path / name, device_bytes)
        time.sleep(0.3)
        raise RuntimeError("RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM.")

    def said(name: str, device_bytes: int, target: Target | None) -> str:
        compiling = partial(compile_step, name, device_bytes)
        return compile_to_plan(compiling, tmp_path / name, refused_by=target)

    target = resolve("v5e").with_memory(GIB)
    assert said("too large", 2 * GIB, target) == "Ran out of memory on HBM."
    assert said("fits", GIB // 2, target) == ""
    assert said("of a compiler that refuses nothing", 2 * GIB, None) == ""


def test_a_step_fits_a_tpu_up_to_what_its_runtime_leaves() -> None:
    target = resolve("v5e")
    fits = judge(Pieces(held=(15 * GIB,)), target, PoolSettings())
    assert (fits.answer, fits.pool_bytes) == (Answer.FITS, target.usable_bytes)
    assert "the 15.7 GiB that v5e gives to programs (16.0 GiB less 258 MiB for its runtime)" in fits.sentence
    over = judge(Pieces(held=(16 * GIB,)), target, PoolSettings())
    assert (over.answer, over.mem_fraction, over.short_bytes) == (Answer.DOES_NOT_FIT, None, 258 * MIB)
    refused = judge(Pieces(held=(15 * GIB,)), target, PoolSettings(), refusal="Ran out of memory on HBM.")
    assert refused.answer is Answer.DOES_NOT_FIT
    assert refused.sentence.endswith("no room for the program's own code, so the compiler rejected it")
    on_chip = judge(Pieces(held=(15 * GIB,)), target, PoolSettings(), refusal="Ran out of memory in memory space vmem.")
    assert on_chip.answer is Answer.DOES_NOT_FIT
    assert "too little memory on the chip; the footprint, 15.0 GiB, is within" in on_chip.sentence
