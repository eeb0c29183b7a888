"""Programs of plain JAX, imported: the report is that of memprof's own capture of the same step, to the byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from quick_plans import ALL_PASSES

import memprof
from memprof.analysis.pipeline import analyze
from memprof.errors import MemprofError
from memprof.sources.dumps.dumps import programs_in
from memprof.sources.dumps.importing import import_program
from memprof.sources.dumps.lowered_files import compile_lowered, lowered_module
from memprof.sources.jax.targets.choose import deviceless_devices
from memprof.sources.jax.targets.resolve import resolve

OPTIMIZER = optax.adamw(1e-3)


class State(NamedTuple):
    """What is carried from step to step."""

    params: Any
    moments: Any
    number: Any


def loss_of(params: Any, x: Any, y: Any) -> Any:
    hidden = jnp.tanh(x @ params["up"]["w"] + params["up"]["b"])
    return jnp.mean((hidden @ params["down"]["w"] - y) ** 2)


def train_step(state: State, x: Any, y: Any) -> tuple[State, Any]:
    loss, gradients = jax.value_and_grad(loss_of)(state.params, x, y)
    updates, moments = OPTIMIZER.update(gradients, state.moments, state.params)
    return State(optax.apply_updates(state.params, updates), moments, state.number + 1), loss


def arguments() -> tuple[Any, ...]:
    params = {"up": {"w": jnp.ones((16, 32)), "b": jnp.ones(32)}, "down": {"w": jnp.ones((32, 4))}}
    state = State(params, OPTIMIZER.init(params), jnp.zeros((), jnp.int32))
    return jax.eval_shape(lambda: (state, jnp.ones((8, 16)), jnp.ones((8, 4))))


def sizes_by_module(node: Any) -> Iterator[tuple[str, Any]]:
    yield node.path, node.categories
    for child in node.children:
        yield from sizes_by_module(child)


@pytest.mark.parametrize("name", ["cpu", "h100-80gb"])
def test_the_report_is_that_of_the_capture(tmp_path: Path, name: str) -> None:
    target, shapes = resolve(name), arguments()
    if target.is_deviceless:
        here = NamedSharding(Mesh(np.array(deviceless_devices(target)), ("device",)), PartitionSpec())
        shapes = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=here), shapes)
    options = {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_proto": True, "xla_dump_hlo_as_text": True}
    # The GPU's own autotuning is off in captures for one that is not there.
    options |= {"xla_gpu_autotune_level": 0, **ALL_PASSES} if target.is_deviceless else {}
    jax.jit(train_step, donate_argnums=0).lower(*shapes).compile(compiler_options=options)
    ours = memprof.profile(train_step, *arguments(), donate_argnums=0, target=name).report
    for kind in (".pb", ".txt"):
        (found,) = programs_in([tmp_path])
        assert kind in found.file.name
        imported = analyze(import_program(found, roles={}, target=None).capture)
        assert imported.categories == ours.categories
        assert (imported.live_peak_bytes, imported.footprint_bytes) == (ours.live_peak_bytes, ours.footprint_bytes)
        assert imported.target.name == name
        assert list(sizes_by_module(imported.modules)) == list(sizes_by_module(ours.modules))
        remove_protos(tmp_path)


def remove_protos(folder: Path) -> None:
    """Leave what XLA dumps where it is not asked for protos."""
    for proto in folder.glob("*.pb"):
        proto.unlink()


def test_the_texts_of_loops_say_what_their_proto_says(tmp_path: Path) -> None:
    def layer(h: Any, w: Any) -> tuple[Any, None]:
        return jnp.tanh(h @ w) @ w.T, None

    def step(w: Any, x: Any) -> Any:
        return w - jax.grad(lambda w: jax.lax.scan(jax.checkpoint(layer), x, w)[0].sum())(w)

    shapes = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((3, 8, 16), (4, 8)))
    options = {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_proto": True, "xla_dump_hlo_as_text": True}
    jax.jit(step, donate_argnums=0).lower(*shapes).compile(compiler_options=options)
    reports = []
    for _ in range(2):
        (found,) = programs_in([tmp_path])
        reports.append(analyze(import_program(found, roles={}, target=None).capture))
        remove_protos(tmp_path)
    assert reports[0].categories == reports[1].categories
    assert list(sizes_by_module(reports[0].modules)) == list(sizes_by_module(reports[1].modules))
    assert sorted(map(placed, reports[0].buffers)) == sorted(map(placed, reports[1].buffers))


def placed(buffer: Any) -> tuple[Any, ...]:
    return buffer.name, buffer.size_bytes, buffer.offset, buffer.at_peak, buffer.category, buffer.source


def as_exported(step: Any, shapes: Any) -> bytes:
    """What `jax.export` serializes, but for what lies around the module: that takes a package that is not installed."""
    module: bytes = jax.export.export(step)(*shapes).mlir_module_serialized
    return b"\0" * 12 + len(module).to_bytes(4, "little") + module + b"\0" * 4


@pytest.mark.parametrize("is_exported", [True, False])
def test_what_is_lowered_is_compiled_for_a_target(tmp_path: Path, is_exported: bool) -> None:
    step, shapes, path = jax.jit(train_step, donate_argnums=0), arguments(), tmp_path / "step"
    path.write_bytes(
        as_exported(step, shapes) if is_exported else step.lower(*shapes).as_text(debug_info=True).encode()
    )
    module = lowered_module(path)
    assert module is not None
    found = compile_lowered(path, module, resolve("cpu"), progress=lambda stage: None)
    imported = analyze(import_program(found, roles={}, target=None).capture)
    ours = memprof.profile(train_step, *shapes, donate_argnums=0, target="cpu").report
    assert imported.categories == ours.categories


def test_what_is_lowered_needs_a_target_and_one_device(tmp_path: Path) -> None:
    path = tmp_path / "step.mlir"
    text = "module @jit_f attributes {mhlo.num_partitions = 8 : i32} { func.func @main() { stablehlo.return } }"
    path.write_text(text)
    with pytest.raises(MemprofError, match="name a target with --target"):
        compile_lowered(path, text.encode(), None, progress=lambda stage: None)
    with pytest.raises(MemprofError, match="lowered for several devices"):
        compile_lowered(path, text.encode(), resolve("cpu"), progress=lambda stage: None)
    path.write_text("no module")
    assert lowered_module(path) is None
