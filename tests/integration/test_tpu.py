"""Steps that are compiled for absent TPUs, with libtpu: the numbers held against the compiler's own and arithmetic."""

from __future__ import annotations

import json
import re
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from integration.command import Command

import memprof
from memprof import MemprofError
from memprof.analysis.hlo.program import ResultLeaf
from memprof.sources.jax.targets.tpu.compiler import libtpu_version

pytestmark = pytest.mark.skipif(
    libtpu_version() is None, reason='compiling for TPUs needs libtpu: pip install "jax-memprof[tpu]"'
)

GIB, MIB = 1 << 30, 1 << 20
# XLA's own words where it refuses a program.
_REFUSAL = re.compile(r"HLO temporaries \(([\d.]+)G\) exceeds available HBM \(([\d.]+)G\)")


def _run(command: Command, *arguments: str, code: int = 0) -> dict[str, Any]:
    ended = command("run", *arguments, "--no-save", "--format", "json", JAX_DISABLE_MOST_OPTIMIZATIONS="0")
    assert ended.returncode == code, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    if not code:
        assert ended.stderr == ""  # libtpu's log stays off the screen
    return found


@pytest.mark.parametrize("target", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
@pytest.mark.slow_cases
def test_every_byte_of_a_small_transformer_is_explained(command: Command, target: str) -> None:
    report = _run(command, "transformer", "--preset", "tiny", "--target", target)
    # The live peak, the memory spaces and the totals have been compared with XLA's before there is a report.
    assert sum(report["categories"].values()) == report["footprint_bytes"] == report["memory_spaces"]["hbm"]
    assert report["categories"]["unattributed"] == 0
    assert report["memory_spaces"]["cmem" if target == "v4" else "vmem"] > 0
    assert report["padding_bytes"] == sum(buffer["padding_bytes"] for buffer in report["buffers"]) > 0
    assert report["toolchain"]["libtpu"] == libtpu_version()
    assert report["verdict"]["answer"] == "fits"


def test_the_finished_compile_says_what_the_plan_says(command: Command) -> None:
    plan = _run(command, "mlp", "--preset", "tiny", "--target", "v5e", "--no-cache")
    finished = _run(command, "mlp", "--preset", "tiny", "--target", "v5e", "--complete")
    assert finished["compiler"]["is_complete"]
    assert finished["footprint_bytes"] == plan["footprint_bytes"]
    own, xlas = plan["compiler"]["peak_memory_bytes"], finished["compiler"]["peak_memory_bytes"]
    assert xlas in (own, None)  # jax 0.10.2 does not tell
    # Its estimate of the time is of the finished program alone, and above the bound.
    assert plan["compiler"]["optimal_seconds"] is None
    assert finished["compiler"]["optimal_seconds"] > finished["roofline"]["at_least_seconds"]


def test_copies_between_layouts_name_who_made_and_who_reads_the_array(command: Command) -> None:
    report = _run(command, "transformer", "--preset", "tiny", "--target", "v5e")
    copies = report["layout_copies"]
    # The projection of queries, keys and values is cut into heads, which its reader wants in another order.
    heads = [each for each in copies if each["shape"][-3:] == [3, 2, 16]]
    assert {each["module"] for each in heads} >= {"layers_0/attention", "layers_1/attention"}
    for each in heads:
        if "/jvp(" in each["op"]:
            assert each["producer"]["op"].endswith("attention/qkv/dot_general")
            assert "->bhqk" in each["consumer"]["op"]
            assert "attention.py:" in each["consumer"]["source"]
    for each in copies:
        assert each["size_bytes"] >= ResultLeaf((), each["dtype"], tuple(each["shape"])).size_bytes > 0
        assert (each["layout"] != each["old_layout"]) or each["kind"] != "copy"
        assert each["step_bytes"] == each["size_bytes"] * each["num_runs"]


def test_what_does_not_fit_is_a_result_with_the_number_of_the_compiler(command: Command) -> None:
    big = ("mlp", "--set", "batch_size=65536", "--set", "hidden_size=65536", "--target", "v5e")
    report = _run(command, *big, code=4)
    said = _REFUSAL.search(report["refusal"])
    assert said is not None, report["refusal"]
    assert float(said[1]) == pytest.approx(report["footprint_bytes"] / GIB, abs=0.011)
    assert report["verdict"]["answer"] == "does_not_fit"
    assert _run(command, *big, code=4)["timings"]["cached_compile_seconds"] is not None  # the cache keeps it


def test_a_slice_divides_what_it_shares(command: Command) -> None:
    options = ("transformer", "--preset", "tiny", "-t", "fsdp", "--set", "batch_size=16")
    for target, mesh, num_hosts in (("v5e", ("--mesh", "fsdp=8"), 2), ("v5p", ("--topology", "2x2x4"), 4)):
        axes = mesh if "--mesh" in mesh else ("--mesh", "fsdp=16", *mesh)
        report = _run(command, *options, *axes, "--target", target)
        assert report["mesh"]["num_hosts"] == num_hosts
        assert report["categories"]["unattributed"] == 0
        held = {share["name"]: share["device_bytes"] for share in report["mesh"]["shares"]}
        padded = {
            name: sum(b["padding_bytes"] for b in report["buffers"] if b["category"] == name)
            for name in ("params", "optimizer_state")
        }
        for name, padding in padded.items():
            whole = next(share["whole_bytes"] for share in report["mesh"]["shares"] if share["name"] == name)
            assert whole / report["mesh"]["num_devices"] <= held[name] - padding < whole


# By JAX's dtype and shape: what a v5e takes for it. The compiler puts the dimension last that needs less padding.
PADDED = {
    ("float32", ()): 512,
    ("float32", (64,)): 512,
    ("float32", (1000,)): 4096,
    ("float32", (100, 130)): 128 * 136 * 4,  # 69,632 for 52,000
    ("float32", (5, 5, 5)): 5 * 8 * 128 * 4,
    ("float32", (4, 100)): 4 * 128 * 4,
    ("bfloat16", (300,)): 512 * 2,
    ("bfloat16", (1000, 10)): 1024 * 16 * 2,
    ("bfloat16", (12, 64, 64)): 12 * 64 * 128 * 2,
    ("int8", (33, 129)): 40 * 256,
    ("int8", (2, 3, 4, 100)): 2 * 3 * 4 * 128,
    ("bool", (1000,)): 1024,
}


def test_padding_is_what_the_tiles_of_the_compiler_add() -> None:
    arrays = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for dtype, shape in PADDED]
    report = memprof.profile(lambda *arrays: [x[None] for x in arrays], *arrays, target="v5e").report
    names = {"float32": "f32", "bfloat16": "bf16", "int8": "s8", "bool": "pred"}
    found = {(each.dtype, each.shape): each for each in report.buffers if each.phase == "argument"}
    for (dtype, shape), device_bytes in PADDED.items():
        argument = found[names[dtype], shape]
        assert argument.size_bytes == device_bytes, (dtype, shape)
        assert argument.padding_bytes == device_bytes - ResultLeaf((), names[dtype], shape).size_bytes


SHAPES: tuple[tuple[int, ...], ...] = (
    *((), (64,), (300,), (1000,), (7, 1), (3, 129), (4, 100), (33, 129), (100, 130), (1000, 10)),
    *((5, 5, 5), (12, 64, 64), (16, 2048, 2), (2, 3, 4, 100)),
)
TYPES = {"float32": ("f32", 4), "bfloat16": ("bf16", 2), "int8": ("s8", 1), "bool": ("pred", 1)}


def _tiled_bytes(shape: tuple[int, ...], item_bytes: int) -> int:
    """By the rules: lanes of 128, up to 8 rows, the better of two orders, and blocks of 512 bytes."""

    def filled(size: int, steps: tuple[int, ...]) -> int:
        step = next((step for step in steps if size <= step), steps[-1])
        return -(-size // step) * step

    if len(shape) < 2:
        num_elements = filled(prod(shape), (128, 256, 512, 1024))
    else:
        *outer, a, b = shape
        orders = [filled(rows, (1, 2, 4, 8)) * filled(columns, (128,)) for rows, columns in ((a, b), (b, a))]
        num_elements = prod(outer) * min(orders)
    return -(-num_elements * item_bytes // 512) * 512


def test_padding_follows_the_tiling_rules_for_every_shape_and_type() -> None:
    arrays = [jax.ShapeDtypeStruct(shape, jnp.dtype(name)) for name in TYPES for shape in SHAPES]
    report = memprof.profile(lambda *arrays: [x[None] for x in arrays], *arrays, target="v5e").report
    found = {(each.dtype, each.shape): each.size_bytes for each in report.buffers if each.phase == "argument"}
    assert found == {
        (dtype, shape): _tiled_bytes(shape, item_bytes) for dtype, item_bytes in TYPES.values() for shape in SHAPES
    }


def test_a_public_report_of_padding_comes_out_the_same() -> None:
    """google/flax issue 1733, on a v3: 140.25M without padding, 10.96G with it, of which one array takes 8.77G."""
    layout = jax.lax.ConvDimensionNumbers((0, 4, 1, 2, 3), (4, 3, 0, 1, 2), (0, 4, 1, 2, 3))

    def convolve(x: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(x, kernel, (1, 1, 1), ((1, 1), (1, 1), (0, 0)), dimension_numbers=layout)

    x = jax.ShapeDtypeStruct((1, 8, 2176, 1056, 2), "float32")
    report = memprof.profile(convolve, x, jax.ShapeDtypeStruct((3, 3, 1, 2, 1), "float32"), target="v3").report
    temps = [buffer for buffer in report.buffers if buffer.is_temp and buffer.padding_bytes > 1 << 20]
    assert [buffer.size_bytes for buffer in temps] == [8976 * MIB, 2244 * MIB]  # 8.77G; together 10.96G
    assert sum(buffer.size_bytes - buffer.padding_bytes for buffer in temps) == 140.25 * MIB


def test_the_api_prints_nothing_of_libtpu(capfd: pytest.CaptureFixture[str]) -> None:
    profile = memprof.profile(lambda x: x * 2, jax.ShapeDtypeStruct((8, 128), "float32"), target="v6e")
    assert profile.report.target.name == "v6e"
    captured = capfd.readouterr()
    assert "tpu" not in (captured.out + captured.err).lower()


def test_a_topology_that_does_not_exist_is_one_sentence() -> None:
    with pytest.raises(MemprofError, match="3 are not a whole number of chips"):
        memprof.mesh("tpu7x", {"data": 3})


@pytest.fixture(name="command")
def _command(memprof: Command) -> Command:
    return memprof
