"""Steps that name a device, kernels for a GPU that is not there, settings of JAX, and steps on many devices."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import memprof
from memprof.analysis.records.categories import Category

W = {"up": jnp.ones((256, 512)), "down": jnp.ones((512, 256))}
X = jnp.ones((64, 256))


def step(w: Any, x: Any) -> Any:
    grads = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w["up"]) @ w["down"]))(w)
    return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads)


def _totals(fn: Callable[..., Any]) -> tuple[int, ...]:
    """What the compiler says of a step for an L4."""
    compiler = memprof.profile(fn, W, X, target="l4").capture.compiler
    return (compiler.argument_bytes, compiler.output_bytes, compiler.alias_bytes, compiler.temp_bytes)


def test_a_step_that_names_one_device_is_compiled_for_the_target() -> None:
    """All of them are the same program; on the CPU, which four of them name, its temporaries are others."""
    mesh = Mesh(np.array(jax.devices("cpu")[:1]), ("d",))
    rows, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("d",), ()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for_cpu = jax.jit(step, donate_argnums=0, backend="cpu")
    in_shards = jax.shard_map(
        step, mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec("d")), out_specs=PartitionSpec(), check_vma=False
    )
    expected = _totals(jax.jit(step, donate_argnums=0))
    assert _totals(for_cpu) == expected
    assert (
        _totals(jax.jit(lambda w, x: step(w, jax.lax.with_sharding_constraint(x, rows)), donate_argnums=0)) == expected
    )
    assert _totals(jax.jit(in_shards, donate_argnums=0)) == expected
    assert (
        _totals(jax.jit(step, donate_argnums=0, in_shardings=(everywhere, rows), out_shardings=everywhere)) == expected
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # JAX is about to move Pallas to another backend
def test_kernels_in_pallas_compile_for_a_gpu_that_is_not_there() -> None:
    from jax.experimental import pallas as pl

    def double(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    def kernel(x: Any) -> Any:
        block = pl.BlockSpec((256,), lambda i: (i,))
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(double, out_shape=shape, grid=(4,), in_specs=[block], out_specs=block)(x)

    profile = memprof.profile(lambda x: kernel(x) + 1, jax.ShapeDtypeStruct((1024,), jnp.float32), target="h100-80gb")
    assert profile.categories[Category.OUTPUTS] == 4096


def test_settings_of_jax_that_change_the_program_stand_in_the_report() -> None:
    plain = memprof.profile(step, W, X, donate_argnums=0, target="cpu")
    assert plain.capture.toolchain.jax_settings == {}
    with jax.debug_nans(True), jax.default_matmul_precision("float32"):
        profile = memprof.profile(step, W, X, donate_argnums=0, target="cpu")
    assert profile.capture.toolchain.jax_settings == {
        "jax_debug_nans": "True", "jax_default_matmul_precision": "float32"
    }  # fmt: skip
    assert "jax_debug_nans=True" in str(profile)
    assert json.loads(profile.render("json"))["toolchain"]["jax_settings"]["jax_debug_nans"] == "True"


def test_operations_keep_their_names_whatever_the_user_set_for_locations() -> None:
    """JAX would leave out which operations belong to the backward pass, and with them what activations are."""

    def step(w: Any, x: Any) -> Any:
        grads = jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(x @ w["up"]) @ w["down"]) ** 2))(w)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads)

    jax.config.update("jax_include_full_tracebacks_in_locations", False)
    try:
        profile = memprof.profile(step, W, X, target="cpu")
        assert not jax.config.jax_include_full_tracebacks_in_locations
    finally:
        jax.config.update("jax_include_full_tracebacks_in_locations", True)
    assert profile.categories[Category.ACTIVATIONS] == 64 * 512 * 4


_SHARDED_INSIDE = """
import sys
import jax, jax.numpy as jnp
jax.config.update("jax_num_cpu_devices", 4)
import memprof
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
X = jax.ShapeDtypeStruct((8, 4), jnp.float32)
steps = {
    "constraint": lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("d"))) * 2,
    "shard_map": jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=P("d"), out_specs=P("d")),
    "in_shardings": jax.jit(lambda x: x * 2, in_shardings=NamedSharding(mesh, P("d"))),
    "set_mesh": lambda x: jax.lax.with_sharding_constraint(x, P("d")) * 2,
}
for name, step in steps.items():
    for target in ("cpu", "l4"):
        with jax.set_mesh(mesh) if name == "set_mesh" else jax.default_device(None):
            try:
                print(name, target, memprof.profile(step, X, target=target).footprint_bytes)
            except memprof.MemprofError as error:
                print(name, target, error)
"""


def test_a_step_that_is_sharded_from_the_inside_is_never_reported_as_if_on_one_device() -> None:
    done = subprocess.run([sys.executable, "-c", _SHARDED_INSIDE], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert len(lines) == 8, done.stderr
    for line in lines:
        if line.startswith(("constraint", "shard_map")):  # a mesh that only tracing finds
            assert "the step itself uses a mesh of 4 devices that its arguments are not on" in line
        else:  # two of eight rows of four numbers, and as many of the result
            assert line.endswith((" cpu 64", " l4 64"))


def _attend(implementation: str) -> Callable[..., Any]:
    return lambda q: jax.grad(lambda q: jax.nn.dot_product_attention(q, q, q, implementation=implementation).sum())(q)


Q = jax.ShapeDtypeStruct((2, 1024, 4, 64), jnp.bfloat16)


def test_cudnn_attention_is_compiled_for_an_absent_gpu_without_cudnn() -> None:
    profile, plain = (memprof.profile(_attend(name), Q, target="h100-80gb") for name in ("cudnn", "xla"))
    assert {name for name in profile.report.program.library_calls if "fmha" in name} == {
        "__cudnn$fmhaSoftmax",
        "__cudnn$fmhaSoftmaxBackward",
    }
    # The probabilities alone are 4 heads x 2 x 1024 x 1024 bfloat16.
    assert plain.live_peak_bytes - profile.live_peak_bytes > 2 * 4 * 1024 * 1024 * 2


def test_cudnn_attention_of_this_machine_needs_the_library() -> None:
    memprof.profile(_attend("cudnn"), Q, target="h100-80gb")
    with pytest.raises(Exception) as raised:  # noqa: PT011 - JAX's own, of several types
        memprof.profile(_attend("cudnn"), Q, target="cpu")
    assert any("nvidia-cudnn-cu" in note for note in raised.value.__notes__)


_CALLBACKS = {
    "debug_print": lambda x: jax.debug.print("{}", x.sum()),
    "debug_callback": lambda x: jax.debug.callback(lambda x: None, x, ordered=True),
    "io_callback": lambda x: io_callback(lambda x: x, x, x, ordered=True),
    "pure_callback": lambda x: jax.pure_callback(lambda x: x, x, x, vmap_method="sequential"),
}


def test_callbacks_are_compiled_for_an_absent_gpu_and_noted() -> None:
    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            made = jnp.tanh(x @ w)
            for call in _CALLBACKS.values():
                call(jax.lax.stop_gradient(made))

            def turn(total: Any, row: Any) -> Any:
                jax.debug.print("{}", row.sum(), ordered=True)
                return total + row.sum(), None

            return jax.lax.scan(turn, 0.0, made)[0]

        return w - 0.1 * jax.grad(loss)(w)

    found = memprof.profile(step, jnp.ones((8, 16)), jnp.ones((4, 8)), target="h100-80gb")
    roles = {leaf.path: (leaf.role.value, leaf.size_bytes) for leaf in found.report.arguments}
    assert roles == {
        "tokens[0]": ("other_state", 0),  # they order prints and calls, one each
        "tokens[1]": ("other_state", 0),
        "w": ("params", 512),  # 8*16*4
        "x": ("batch", 128),  # 4*8*4
    }
    (note,) = found.report.doubts
    assert note.startswith(f"The step calls Python 5 times (debug_print {Path(__file__).name}:")


def test_a_filter_jit_with_a_check_of_values_is_compiled_for_an_absent_gpu() -> None:
    """Equinox lowers the step while memprof traces it; `error_if` calls Python, as in solvers of diffrax and lineax."""
    eqx = pytest.importorskip("equinox")
    checked = eqx.filter_jit(lambda x: 2.0 * eqx.error_if(x, x.sum() > 1.0, "too large"))
    found = memprof.profile(checked, jax.ShapeDtypeStruct((1000,), jnp.float32), target="h100-80gb")
    assert found.footprint_bytes > 8000  # the argument and the result
    assert any("calls Python" in note for note in found.report.doubts)
