"""Steps that are sharded over GPUs which are not there: the numbers of one device, held against JAX and arithmetic."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from integration.command import Command
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jsonschema import Draft202012Validator
from quick_plans import ALL_PASSES

import memprof
from memprof import Category, MemprofError

WIDTH, NUM_LAYERS, BATCH = 256, 3, 64
NUM_WEIGHTS = NUM_LAYERS * WIDTH * WIDTH
TX = optax.adam(1e-3)
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schema" / "report.schema.json").read_text())


# What devices send each other, where XLA has little choice: how often, and the bytes on one device.
WEIGHT, SCALE = 4 * WIDTH * WIDTH, 4 * WIDTH
TRAFFIC = {
    # the gradients of all parameters are added up
    "dp": {("all-reduce", "data"): (1, NUM_LAYERS * WEIGHT + SCALE)},
    "zero1": {("reduce-scatter", "data"): (1, NUM_LAYERS * WEIGHT), ("all-reduce", "data"): (1, SCALE)},
    "fsdp and tp": {
        # half of each weight, at once; and twice what a layer gives for 64 rows, half as wide, for its gradient
        ("all-gather", "fsdp"): (1 + 2, NUM_LAYERS * WEIGHT // 2 + 2 * 4 * BATCH * WIDTH // 2),
        ("reduce-scatter", "fsdp"): (1, NUM_LAYERS * WEIGHT // 2),
        ("all-reduce", "fsdp"): (1, SCALE // 2),
        # what a layer gives for the 16 rows of a device, to the next layer and back
        ("all-gather", "tp"): (2, 2 * 4 * (BATCH // 4) * WIDTH),
        ("all-reduce", "tp"): (2, 2 * 4 * (BATCH // 4) * WIDTH),
        ("all-to-all", "fsdp"): (2, 2 * 4 * (BATCH // 4) * WIDTH),
    },
}


def loss(params: Any, x: Any) -> Any:
    for name in sorted(params["layers"]):
        x = jnp.tanh(x @ params["layers"][name])
    return jnp.mean(x * params["scale"])


def train_step(state: Any, x: Any, loss: Callable[..., Any] = loss) -> Any:
    params, opt_state = state
    grads = jax.grad(loss)(params, x)
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


@dataclass(frozen=True)
class Sharded:
    """A way to shard it: how many devices share a weight, a moment, the batch."""

    axes: dict[str, int]
    weights: P
    moments: P
    batch: P
    times: tuple[int, int, int]


WAYS = {
    "dp": Sharded({"data": 8}, P(), P(), P("data"), (1, 1, 8)),
    "zero1": Sharded({"data": 8}, P(), P("data"), P("data"), (1, 8, 8)),
    "fsdp": Sharded({"data": 8}, P("data"), P("data"), P("data"), (8, 8, 8)),
    "fsdp and tp": Sharded({"fsdp": 4, "tp": 2}, P("fsdp", "tp"), P("fsdp", "tp"), P("fsdp"), (8, 8, 4)),
}


def arguments(way: Sharded, mesh: Mesh) -> tuple[Any, Any]:
    def shape(spec: P, *dimensions: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dimensions, "float32", sharding=NamedSharding(mesh, spec))

    def tree(spec: P) -> Any:
        return {"layers": {f"l{n}": shape(spec, WIDTH, WIDTH) for n in range(NUM_LAYERS)}, "scale": shape(P(), WIDTH)}

    params, moments = tree(way.weights), tree(way.moments)
    opt_state = optax.tree_map_params(
        TX, lambda _, moment: moment, jax.eval_shape(TX.init, params), moments, transform_non_params=lambda leaf: leaf
    )
    return (params, opt_state), shape(way.batch, BATCH, WIDTH)


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.slow_cases
def test_each_device_holds_what_the_shardings_say_and_the_totals_are_jaxs_own(name: str) -> None:
    way = WAYS[name]
    mesh = memprof.mesh("h100-80gb", way.axes)
    args = arguments(way, mesh)
    profile = memprof.profile(train_step, *args, donate_argnums=0)
    of_weights, of_moments, of_batch = way.times
    scale = 4 * WIDTH
    assert profile.categories[Category.PARAMS] == 4 * NUM_WEIGHTS // of_weights + scale
    assert profile.categories[Category.OPTIMIZER_STATE] == 2 * (4 * NUM_WEIGHTS // of_moments + scale) + 4
    assert profile.categories[Category.BATCH] == 4 * BATCH * WIDTH // of_batch
    assert sum(profile.categories.values()) == profile.footprint_bytes

    own = jax.jit(train_step, donate_argnums=0).lower(*args).compile(compiler_options=ALL_PASSES).memory_analysis()
    ours = profile.report.compiler
    assert (ours.argument_bytes, ours.output_bytes, ours.alias_bytes, ours.temp_bytes) == (
        own.argument_size_in_bytes,
        own.output_size_in_bytes,
        own.alias_size_in_bytes,
        own.temp_size_in_bytes,
    )
    assert ours.peak_memory_bytes == profile.live_peak_bytes
    if name in TRAFFIC:
        found = profile.report.collectives
        assert {(each.kind, *each.axes): (each.count, each.size_bytes) for each in found} == TRAFFIC[name]


def test_gathered_weights_are_a_category_of_their_own(tmp_path: Path) -> None:
    way = WAYS["fsdp"]
    args = arguments(way, memprof.mesh("h100-80gb", way.axes))
    profile = memprof.profile(train_step, *args, donate_argnums=0)
    whole = [buffer for buffer in profile.report.temp_buffers if buffer.category is Category.GATHERED_PARAMS]
    weight_bytes = 4 * WIDTH * WIDTH
    assert {buffer.size_bytes for buffer in whole if buffer.shape == (WIDTH, WIDTH)} == {weight_bytes}
    assert profile.categories[Category.GATHERED_PARAMS] % weight_bytes == 0
    assert profile.categories[Category.PARAM_COPIES] == 0

    text = str(profile)
    assert "Memory of each of 8 devices" in text
    assert "8 x h100-80gb" in text
    shares = json.loads(str(profile.render("json")))
    Draft202012Validator(SCHEMA).validate(shares)
    assert shares["mesh"]["axes"] == {"data": 8}
    assert shares["mesh"]["replicated"] == [
        # the scale and its two moments
        {"axis": "data", "num_devices": 8, "device_bytes": 3072, "saving_bytes": 2688, "largest": "state[0]['scale']"}
    ]
    assert shares["mesh"]["collectives"][0] == {
        "kind": "all-gather",
        "axes": ["data"],
        "group_size": None,
        "count": profile.report.collectives[0].count,
        "bytes": profile.report.collectives[0].size_bytes,
        "param_bytes": profile.report.collectives[0].param_bytes,
        "at_least": False,
    }
    assert "all-gather" in text
    assert "along" in text
    again = memprof.load(profile.save(tmp_path / "fsdp.memprof"))
    assert json.loads(str(again.render("json")))["mesh"] == shares["mesh"]


def test_a_step_written_with_shard_map_counts_the_work_of_all_devices() -> None:
    mesh = memprof.mesh("h100-80gb", {"data": 8})
    args = arguments(WAYS["dp"], mesh)

    def mean_of_shards(params: Any, x: Any) -> Any:
        return jax.lax.pmean(loss(params, x), "data")

    by_hand = jax.shard_map(mean_of_shards, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    automatic = memprof.profile(train_step, *args, donate_argnums=0)
    mapped = memprof.profile(partial(train_step, loss=by_hand), *args, donate_argnums=0, label="mapped")
    assert mapped.report.flops == automatic.report.flops > 0
    assert mapped.categories[Category.PARAMS] == automatic.categories[Category.PARAMS]


def test_memory_of_collectives_in_a_colour_of_its_own_is_memory_of_the_device() -> None:
    mesh = memprof.mesh("h100-80gb", {"data": 8})
    weight = jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32", sharding=NamedSharding(mesh, P("data")))
    x = jax.ShapeDtypeStruct((BATCH, WIDTH), "float32", sharding=NamedSharding(mesh, P("data")))
    profile = memprof.profile(
        lambda params, x: jnp.tanh(x @ params).sum(),
        weight,
        x,
        roles={"params": "params", "x": "batch"},
        compiler_options={"xla_gpu_enable_nccl_user_buffers": "True"} | ALL_PASSES,
        complete=True,  # the totals are `memory_analysis()`'s, which the analysis has held its own against
    )
    whole, part, totals = WEIGHT, WEIGHT // 8, profile.report.compiler
    assert profile.categories[Category.GATHERED_PARAMS] == whole
    # The weight of this device and 8 rows of the batch, the sum, and in the other colour the copy that is sent.
    assert profile.live_peak_bytes == (part + 4 * BATCH * WIDTH // 8) + 4 + whole + part
    assert profile.report.footprint_bytes == totals.argument_bytes + totals.output_bytes + totals.temp_bytes
    assert "in memory reserved for collectives" in {each.evidence for each in profile.report.temp_buffers}


def test_what_the_partitioner_warns_of_is_a_note_with_the_place_in_the_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mesh = memprof.mesh("h100-80gb", {"x": 4, "y": 2})
    before, after = NamedSharding(mesh, P("y", None, "x")), NamedSharding(mesh, P(None, ("x", "y"), None))

    def step(params: Any, x: Any) -> Any:
        with jax.named_scope("layer_0"):
            both = params + x
        return jax.lax.with_sharding_constraint(both, after)

    args = [jax.ShapeDtypeStruct((16, 16, 16), "float32", sharding=before)] * 2
    for _ in range(2):  # compiled, and from the cache
        profile = memprof.profile(step, *args)
        assert all(line.startswith("step: ") for line in capfd.readouterr().err.splitlines())  # the stages alone
        (note,) = profile.report.partitioner_notes
        # 16 rows over y=2, 16 columns over x=4
        assert (note.op, note.shape) == ("jit(step)/layer_0/add", "f32[8,16,4]")
        assert note.source.startswith(__file__)
    shown = memprof.load(profile.save(tmp_path / "warned.memprof"))
    assert "involuntary full rematerialization" in " ".join(str(shown).split())
    (in_json,) = json.loads(str(shown.render("json")))["mesh"]["partitioner_notes"]
    assert in_json["text"] == note.text


def test_where_the_step_names_no_sharding_xla_chooses_and_the_bytes_are_its_own() -> None:
    way = WAYS["fsdp"]
    state, x = arguments(way, memprof.mesh("h100-80gb", way.axes))
    profile = memprof.profile(train_step, state, jax.ShapeDtypeStruct(x.shape, x.dtype), donate_argnums=0)
    batch = next(leaf for leaf in profile.report.arguments if leaf.path == "x")
    assert batch.mesh_axes is None
    assert profile.report.device_bytes(batch) == profile.categories[Category.BATCH]


@pytest.mark.slow
def test_the_example_is_profiled_on_the_command_line(memprof: Command) -> None:
    example = Path(__file__).parents[2] / "examples" / "sharded.py"
    small = ("--set", "num_layers=1", "--set", "width=256")
    done = memprof("run", str(example), *small, "--no-save", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    # two weights of 256 by 1,024 in bfloat16 over 8 devices, and two moments of each with a counter
    assert report["mesh"]["shares"][:2] == [
        {"name": "params", "whole_bytes": 1048576, "device_bytes": 131072},
        {"name": "optimizer_state", "whole_bytes": 2097156, "device_bytes": 262148},
    ]
    refused = memprof("run", str(example), *small, "--no-save", "--target", "a100-40gb")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "are on a mesh of 8 h100-80gb, which determines the target" in refused.stderr


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: memprof.mesh("h100-80gb", {}), "a mapping from axis names to sizes was expected"),
        (lambda: memprof.mesh("h100-80gb", {"data": 0}), "the axis data has the size 0"),
        (lambda: memprof.mesh("h100-80gb", {"data": 8}, hosts=3), "give a divisor of 8"),
        (lambda: memprof.mesh("cpu", {"data": 8}), "'cpu' is neither"),
        (lambda: memprof.mesh("local", {"data": 8}), "'local' is neither"),
        (lambda: memprof.mesh("h100", {"data": 8}), "'h100' matches several targets"),
        (lambda: memprof.mesh("h100-80gb", {"data": 8}, axis_types=[]), "one jax.sharding.AxisType for each"),
        (lambda: memprof.mesh("h100-80gb", {"data": 8}, axis_types="Auto"), "one jax.sharding.AxisType for each"),
        (lambda: memprof.mesh("h100-80gb", {"data": 8}, axis_types=("Auto",)), "one jax.sharding.AxisType for each"),
        (lambda: memprof.mesh("h100-80gb", {"data": 8}, axis_types=3), "one jax.sharding.AxisType for each"),
        (lambda: memprof.mesh("h100-80gb", {f"a{n}": 1 for n in range(100)}), "at most 64 axes, not 100"),
        (lambda: memprof.mesh("h100-80gb", {"": 8}), "a non-empty string was expected"),
    ],
)
def test_a_mesh_that_cannot_be_is_one_sentence(ask: Callable[[], Mesh], sentence: str) -> None:
    with pytest.raises(MemprofError) as caught:
        ask()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arguments_on_two_meshes_or_beside_another_target_are_refused() -> None:
    one, other = (memprof.mesh("h100-80gb", {"data": 8}) for _ in range(2))
    (_, _), x = arguments(WAYS["dp"], one)
    (params, _), _ = arguments(WAYS["dp"], other)
    with pytest.raises(MemprofError, match="use 2 meshes of different devices"):
        memprof.profile(loss, params, x)
    with pytest.raises(MemprofError, match="are on a mesh of 8 h100-80gb, which determines the target"):
        memprof.profile(lambda x: x * 2, x, target="l4")
    half = NamedSharding(Mesh(one.devices[:4], ("data",)), P("data"))
    x = jax.ShapeDtypeStruct((8,), "float32", sharding=half)
    with pytest.raises(MemprofError, match=r"over 4 of the 8 devices of memprof\.mesh: ask it for 4"):
        memprof.profile(lambda x: x * 2, x)
