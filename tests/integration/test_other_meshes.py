"""Steps that were written for another mesh, of CPU devices or of none: the program is that of `memprof.mesh`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from script_rows import ScriptRows

import memprof
from memprof import MemprofError
from memprof.sources.jax.xla import xla_adapter

_WRITTEN = """
import contextlib, itertools, warnings
from functools import partial

import jax, jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 8)
import memprof

AXES, AUTO, EXPLICIT = {"d": 4, "t": 2}, (AxisType.Auto,) * 2, (AxisType.Explicit,) * 2
WEIGHTS, BATCH = {"up": P("d", "t"), "down": P("t", "d")}, P("d")

def meshes(types):
    abstract = AbstractMesh((4, 2), ("d", "t"), axis_types=types)
    of_cpus = jax.make_mesh((4, 2), ("d", "t"), axis_types=types)
    return {"ours": memprof.mesh("h100-80gb", AXES, axis_types=types), "cpus": of_cpus, "abstract": abstract}

def loss(w, x, hidden):
    h = jnp.tanh(x @ w["up"])
    return jnp.mean((jax.lax.with_sharding_constraint(h, hidden) @ w["down"]) ** 2)

def step(w, x, hidden):
    return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w, x, hidden))

def shapes(sharding=lambda spec: None):
    def shape(spec, *dimensions):
        return jax.ShapeDtypeStruct(dimensions, "float32", sharding=sharding(spec))
    return {"up": shape(WEIGHTS["up"], 256, 512), "down": shape(WEIGHTS["down"], 512, 256)}, shape(BATCH, 64, 256)

def automatic():
    for name, mesh in meshes(AUTO).items():
        on_mesh = partial(NamedSharding, mesh)
        closed = partial(step, hidden=on_mesh(P("d", "t")))
        yield f"arguments {name}", closed, shapes(on_mesh), None
        if name == "cpus":
            told = tuple(jax.tree.map(on_mesh, (WEIGHTS, BATCH)))
            yield "jit", jax.jit(closed, in_shardings=told, out_shardings=told[0]), shapes(), None
            with jax.set_mesh(mesh):
                specs_alone = shapes(lambda spec: spec)
            hidden_spec = partial(step, hidden=P("d", "t"))
            yield "set_mesh", hidden_spec, specs_alone, jax.set_mesh(mesh)
            of_specs = jax.jit(hidden_spec, in_shardings=(WEIGHTS, BATCH), out_shardings=WEIGHTS)
            yield "jit of specs", of_specs, shapes(), jax.set_mesh(mesh)
            arrays = jax.tree.map(lambda shape: jax.device_put(jnp.ones(shape.shape), shape.sharding), shapes(on_mesh))
            yield "arrays", closed, arrays, None
            with warnings.catch_warnings(action="ignore"):
                yield "with mesh", hidden_spec, shapes(on_mesh), mesh

def explicit():
    def product(w, x):
        return jnp.einsum("bi,io->bo", x, w["up"], out_sharding=P("d", "t"))
    for name, mesh in meshes(EXPLICIT).items():
        around = jax.sharding.use_abstract_mesh(mesh) if name == "abstract" else jax.set_mesh(mesh)
        yield f"explicit {name}", product, shapes(partial(NamedSharding, mesh)), around

def on_host():
    def decay(state):
        return jax.device_put(jax.device_put(state, jax.memory.Space.Device) * 0.9, jax.memory.Space.Host)
    for name, mesh in meshes(AUTO).items():
        host = NamedSharding(mesh, P("d"), memory_kind="pinned_host")
        if name != "ours":  # devices that are not there forget it
            yield f"on host {name}", decay, (jax.ShapeDtypeStruct((512, 256), "float32", sharding=host),), None

# Called from one line, so that programs which are the same are compiled once.
for name, fn, args, around in itertools.chain(automatic(), explicit(), on_host()):
    with fail_alone(), around or contextlib.nullcontext():
        profile = memprof.profile(fn, *args)
        compiler, target = profile.report.compiler, profile.report.target
        found = [profile.footprint_bytes, profile.live_peak_bytes, compiler.argument_bytes, compiler.temp_bytes]
        found += [target.name, dict(target.topology.axes), [leaf.mesh_axes for leaf in profile.report.arguments]]
        row(name, found)
"""


@pytest.fixture(scope="module")
def written() -> ScriptRows:
    """What was found of each way to write the step; one process, for a mesh of CPUs takes eight of them."""
    return ScriptRows(_WRITTEN)


@pytest.mark.parametrize(
    ("way", "others"),
    [
        (
            "arguments ours",
            "arguments cpus, arguments abstract, jit, set_mesh, jit of specs, arrays, with mesh",
        ),
        ("explicit ours", "explicit cpus, explicit abstract"),
        ("on host cpus", "on host abstract"),
    ],
)
@pytest.mark.slow
def test_however_the_mesh_is_named_it_is_the_same_program(written: ScriptRows, way: str, others: str) -> None:
    for other in others.split(", "):
        assert written[other] == written[way], other
    assert written[way][4:6] == ["h100-80gb", {"d": 4, "t": 2}]


def test_each_device_holds_what_the_shardings_say(written: ScriptRows) -> None:
    # two weights of 256 by 512 over eight devices, and 64 rows of 256 over four, in float32
    assert written["arguments cpus"][2] == 4 * (2 * 256 * 512 // 8 + 64 * 256 // 4)
    assert written["arguments cpus"][6] == [["t", "d"], ["d", "t"], ["d"]]
    assert written["explicit cpus"][2] == 4 * (256 * 512 // 8 + 64 * 256 // 4)


def test_what_lies_in_the_hosts_memory_takes_none_of_the_devices(written: ScriptRows) -> None:
    footprint, _, argument_bytes, temp_bytes, *_ = written["on host cpus"]
    assert argument_bytes == 0
    assert 0 < footprint == temp_bytes


AUTO = (AxisType.Auto,)
ABSTRACT = AbstractMesh((4, 2), ("d", "t"), axis_types=AUTO * 2)


def on(mesh: Any, *spec: Any, shape: tuple[int, ...] = (64, 64)) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, P(*spec)))


def constrained(mesh: Any) -> Callable[[Any], Any]:
    return lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("d"))) * 2


def devices(number: int) -> Any:
    return memprof.mesh("h100-80gb", {"d": number}).devices


def double(x: Any) -> Any:
    return x * 2


@pytest.mark.with_one_jax
@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (
            lambda: memprof.profile(double, on(ABSTRACT, "d", shape=(6, 64))),
            "x has the shape (6, 64), which P('d',) on a mesh of {'d': 4, 't': 2} does not divide evenly",
        ),
        (
            lambda: memprof.profile(double, on(Mesh(devices(8).reshape(4, 2), ("d", "d")), "d")),
            "two axes of the step's mesh are called d: give each a unique name",
        ),
        (
            lambda: memprof.profile(double, on(Mesh(devices(8)[:4], ("d",)), "d")),
            "over 4 of the 8 devices of memprof.mesh: ask it for 4",
        ),
        (
            lambda: memprof.profile(double, on(ABSTRACT, "d"), target="cpu"),
            "an abstract mesh of 8 devices, which does not name local devices",
        ),
        (
            lambda: memprof.profile(double, on(ABSTRACT, "d"), target="local"),
            "an abstract mesh of 8 devices, which does not name local devices",
        ),
        (
            lambda: memprof.profile(lambda x, y: x + y, on(ABSTRACT, "d"), on(AbstractMesh((2,), ("d",)), "d")),
            "the shardings of the step use 2 meshes of different devices: use a single mesh",
        ),
        (
            lambda: memprof.profile(
                constrained(memprof.mesh("h100-80gb", {"d": 8})), on(memprof.mesh("h100-80gb", {"d": 8}), "d")
            ),
            "the step itself uses a mesh of 8 devices that its arguments are not on",
        ),
        (
            lambda: memprof.profile(constrained(AbstractMesh((16,), ("d",), axis_types=AUTO)), on(ABSTRACT, "d")),
            "the step itself uses a mesh of 16 devices that its arguments are not on",
        ),
    ],
)
def test_what_does_not_go_together_is_one_sentence(ask: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(MemprofError) as caught:
        ask()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_shardings_that_do_not_fit_are_one_sentence_where_they_are_not_in_the_step() -> None:
    mesh = memprof.mesh("h100-80gb", {"d": 8})
    x, over_d = jax.ShapeDtypeStruct((6, 64), "float32"), NamedSharding(mesh, P("d"))
    uneven = r"P\('d',\) divides dimension 0 into 8 parts, but its length is 6 in an array of shape \(6, 64\): pad it"
    for options in ({"in_shardings": over_d}, {"in_shardings": NamedSharding(mesh, P()), "out_shardings": over_d}):
        with pytest.raises(
            MemprofError, match=f"in_shardings or out_shardings of the step's jit do not match: {uneven}"
        ):
            memprof.profile(jax.jit(double, **options), x)
    no_axis = r"do(?:es)? not match: P\('tp',\) names the axis tp, but the axes of the mesh are 'd'"
    with jax.set_mesh(mesh):
        for step, argument in (
            (jax.jit(double, in_shardings=P("tp")), x),
            (double, jax.ShapeDtypeStruct((6, 64), "float32", sharding=P("tp"))),
        ):
            with pytest.raises(MemprofError, match=no_axis):
                memprof.profile(step, argument)
        # A line of the step itself is the user's code, which is shown as it is for any other error in it.
        with pytest.raises(ValueError, match="Resource axis: tp"):
            memprof.profile(lambda x: jax.lax.with_sharding_constraint(x, P("tp")), x, target="h100-80gb")


def test_memories_that_are_said_of_a_step_do_not_stay_with_its_function() -> None:
    """JAX keeps what it has lowered, and gives it again where the same function comes without them."""
    x = on(memprof.mesh("h100-80gb", {"d": 8}), "d")
    lowered, again = (jax.jit(double).trace(x).lower() for _ in range(2))
    xla_adapter.place_arguments(lowered, {0: "pinned_host"})
    assert 'mhlo.memory_kind = "pinned_host"' in lowered.as_text()
    assert "pinned_host" not in again.as_text()
    assert "pinned_host" not in jax.jit(double).trace(x).lower().as_text()
