"""The Python API, in a process of its own as a notebook is: JAX has started its backends before memprof is asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest

import memprof
from memprof.analysis.records.capture import CompilerTotals
from memprof.sources.jax.xla.xla_adapter import no_compilation_cache

_NOTEBOOK = """
import logging
import jax, jax.numpy as jnp, optax
logging.disable(logging.CRITICAL)
weights = {"up": jnp.ones((64, 256)), "down": jnp.ones((256, 64))}
print(float(weights["up"].sum()))  # starts JAX's backends: on a machine without CUDA's libraries it gives CUDA up
optimizer = optax.adam(1e-3)
state = optimizer.init(weights)
x = jnp.ones((32, 64))
cache = jax.config.jax_enable_compilation_cache

def step(weights, state, x):
    def loss(weights):
        return jnp.mean((jax.nn.relu(x @ weights["up"]) @ weights["down"] - x) ** 2)
    grads = jax.grad(loss)(weights)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(weights, updates), state

import memprof
before = memprof.profile(step, weights, state, x, target="h100-80gb")
after = memprof.profile(step, weights, state, x, target="h100-80gb", donate_argnums=(0, 1))
assert sum(before.by("category").values()) == before.footprint_bytes
for key in ("module", "source", "dtype", "phase"):
    assert sum(before.by(key).values()) == before.footprint_bytes, key
print(before)
print(repr(after))
compared = memprof.compare({"plain": before, "donated": after})
print(compared)
import json, sys
print(json.loads(compared.render("json"))["effects"][1]["categories_delta"]["outputs"])
path = after.save(sys.argv[1])
assert memprof.load(path).footprint_bytes == after.footprint_bytes
# Nothing of the user's process has changed.
assert jax.config.jax_enable_compilation_cache == cache
print(jax.devices()[0].platform, float(jax.jit(lambda x: x.sum())(x)))
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("notebook") / "step.memprof"
    done = subprocess.run(
        [sys.executable, "-c", _NOTEBOOK, str(path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**_environment(), "PYTHONPATH": str(Path(memprof.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_SCRIPT = """
import jax, memprof
before = dict(jax.config.values)
shape = jax.ShapeDtypeStruct((8,), "float32")
memprof.mesh("h100-80gb", {"data": 2})

def double(x):
    return x + x

memprof.profile(double, shape, target="h100-80gb")  # the first to use JAX
print({name: value for name, value in jax.config.values.items() if before[name] != value})
"""


@pytest.mark.with_one_jax
def test_a_script_keeps_its_settings_and_sees_the_stages(tmp_path: Path) -> None:
    environment = {**_environment(), "MEMPROF_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=300, env=environment, check=True
    )
    assert done.stdout == "{}\n"
    stages = ("tracing", "lowering", "importing", "compiling", "analysing")
    assert done.stderr.splitlines() == [f"double: {stage} ..." for stage in stages]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}


def test_a_second_thread_waits_with_what_is_the_whole_processs() -> None:
    entered = threading.Event()

    def second() -> None:
        with no_compilation_cache():
            entered.set()

    assert jax.config.jax_enable_compilation_cache
    thread = threading.Thread(target=second)
    with no_compilation_cache():
        thread.start()
        assert not entered.wait(0.2)
    thread.join(timeout=60)
    assert entered.is_set()
    assert jax.config.jax_enable_compilation_cache


def test_a_step_is_profiled_for_a_gpu_that_is_not_there(notebook: str) -> None:
    assert "step  memprof" in notebook
    assert "NVIDIA H100" in notebook
    assert "<memprof.Profile step: " in notebook


def test_donation_takes_the_new_state_away(notebook: str) -> None:
    # The new weights and both moments, 3 * 2 arrays of 64 * 256 float32, and the count; the table of results stays.
    assert int(notebook.splitlines()[-2]) == -(3 * 2 * 64 * 256 * 4 + 4)


def test_the_users_process_is_left_as_it_was(notebook: str) -> None:
    assert notebook.splitlines()[-1] == "cpu 2048.0"


def test_importing_memprof_imports_no_jax() -> None:
    code = "import memprof, sys; print('jax' in sys.modules, sorted(memprof.__all__) == sorted(dir(memprof)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"


def test_every_name_that_is_offered_is_there() -> None:
    assert all(getattr(memprof, name) is not None for name in memprof.__all__)
    with pytest.raises(AttributeError, match="no attribute 'profil'"):
        memprof.profil  # noqa: B018


def test_bad_requests_get_a_sentence() -> None:
    profile = memprof.profile(lambda x: x + 1, 1.0, target="cpu")
    with pytest.raises(memprof.MemprofError, match="There is no key 'size'"):
        profile.by("size")  # type: ignore[arg-type]
    with pytest.raises(memprof.MemprofError, match="There is no target"):
        memprof.profile(lambda x: x, 1.0, target="h200-xl")
    with pytest.raises(memprof.MemprofError, match="nothing to compare"):
        memprof.compare({})
    assert json.loads(profile.render("json"))["footprint_bytes"] == profile.footprint_bytes


def test_a_step_fits_if_its_footprint_leaves_the_reserve() -> None:
    profile = memprof.profile(lambda x: x + x, 1.0, target="cpu")
    assert profile.footprint_bytes == 8  # a float32 in and one out
    assert memprof.fits(profile, 10)
    assert memprof.fits(profile, 8)  # the CPU has no pool of its own
    assert not memprof.fits(profile, 7)
    assert not memprof.fits(profile, 10, reserve=0.3)
    assert profile.verdict.answer == "unknown"
    assert memprof.fits(profile, "1 KiB")
    with pytest.raises(memprof.MemprofError, match="cpu has no fixed memory size"):
        memprof.fits(profile)
    with pytest.raises(memprof.MemprofError, match="at least 0 and below 1"):
        memprof.fits(profile, 8, reserve=1.5)


def test_a_compile_to_the_end_is_held_against_the_compilers_own_totals() -> None:
    profile = memprof.profile(lambda x: x + x, jnp.ones(8), target="cpu", complete=True)
    assert profile.capture.compiler == CompilerTotals(
        argument_bytes=32,
        output_bytes=32,
        alias_bytes=0,
        temp_bytes=0,
        peak_memory_bytes=None,
        total_allocation_bytes=profile.capture.compiler.total_allocation_bytes,  # jaxlib 0.10.2 has none
    )
    with pytest.raises(memprof.MemprofError, match=r"complete is 'yes' \(str\), but True or False was expected"):
        memprof.profile(lambda x: x, 1.0, target="cpu", complete="yes")  # type: ignore[arg-type]


def test_a_frozen_reference_is_not_donated() -> None:
    """It has the shapes of the parameters, and comes before them."""

    def step(reference, params, velocity, x):
        def loss(params):
            return ((x @ params - jax.lax.stop_gradient(x @ reference)) ** 2).mean()

        velocity = 0.9 * velocity + jax.grad(loss)(params)
        return params - velocity, velocity

    arguments = [jnp.ones((64, 64))] * 4
    made = memprof.profile(step, *arguments, target="cpu")
    assert [leaf.is_carried for leaf in made.report.arguments] == [False, True, True, False]
    assert [each.proposal.intent.positions for each in made.advice if each.rule == "donate_state"] == [(1, 2)]


def test_a_profile_has_advice() -> None:
    def step(params, x):
        return params - jax.grad(lambda p: ((p * x).sum()) ** 2)(params)

    arguments, roles = (jnp.ones((64, 64)), jnp.ones((64, 64))), {"params": "params", "x": "batch"}
    wasteful = memprof.profile(step, *arguments, roles=roles, target="cpu")
    donated = memprof.profile(step, *arguments, roles=roles, target="cpu", donate_argnums=(0,))
    (advice,) = wasteful.advice
    assert (advice.rule, advice.saving_bytes) == ("donate_state", 64 * 64 * 4)
    assert wasteful.footprint_bytes - donated.footprint_bytes == advice.saving_bytes
    assert donated.advice == ()
    assert "donate" in str(wasteful.advice)
    assert "<table" in wasteful.advice._repr_html_()
    assert wasteful.advice[0].proposal.what == advice.proposal.what
    assert wasteful.advice[:1]._repr_html_() == wasteful.advice._repr_html_()
    assert repr(wasteful.advice[:1]) == str(wasteful.advice)


def test_a_notebook_shows_a_table_without_scripts() -> None:
    shown = memprof.profile(lambda x: x + 1, 1.0, target="cpu")._repr_html_()
    assert "<table" in shown
    assert "<script" not in shown


def test_a_profile_as_plain_values_and_as_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    profile = memprof.profile(lambda x, y: x @ y, jnp.ones((8, 16)), jnp.ones((16, 4)), target="cpu")
    assert profile.to_dict() == json.loads(profile.render("json"))
    buffers = profile.to_pandas()
    assert isinstance(buffers, pandas.DataFrame)
    assert buffers["size_bytes"].sum() == profile.live_peak_bytes
    assert list(map(tuple, buffers["shape"])) == [buffer.shape for buffer in profile.buffers]
    by_dtype = profile.to_pandas("dtype")
    assert by_dtype.set_index("dtype")["size_bytes"].to_dict() == profile.by("dtype")
    with pytest.raises(memprof.MemprofError, match="There is no key 'rule'"):
        profile.to_pandas("rule")  # type: ignore[arg-type]


def test_without_pandas_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    profile = memprof.profile(lambda x: x + 1, 1.0, target="cpu")
    with pytest.raises(memprof.MemprofError, match=r'pip install "jax-memprof\[notebook\]"'):
        profile.to_pandas()


def test_a_summary_counts_parameters_operations_and_activations_by_module() -> None:
    params = {"first": {"kernel": jnp.ones((8, 16))}, "second": {"kernel": jnp.ones((16, 4))}}

    def loss(params, x):
        with jax.named_scope("first"):
            hidden = jnp.tanh(x @ params["first"]["kernel"])
        with jax.named_scope("second"):
            return (hidden @ params["second"]["kernel"]).sum()

    x = jax.ShapeDtypeStruct((32, 8), "float32")
    roles = {"params": "params", "x": "batch"}
    trained = memprof.summary(jax.grad(loss), params, x, target="cpu", roles=roles)
    first, second = trained.report.modules.children
    assert (first.num_params, second.num_params) == (8 * 16, 16 * 4)
    assert first.forward_flops >= 2 * 32 * 8 * 16  # the product, and the hyperbolic tangent
    assert second.forward_flops >= 2 * 32 * 16 * 4
    applied = memprof.summary(loss, params, x, target="cpu", roles=roles)
    assert [each.forward_flops for each in applied.report.modules.children] == [
        first.forward_flops,
        second.forward_flops,
    ]
    assert [line.split()[0] for line in str(trained).splitlines() if "FLOP" in line] == [
        "operations",
        "first",
        "second",
        "all",
    ]
    assert "<table" in trained._repr_html_()
    with pytest.raises(memprof.MemprofError, match="depth is 0"):
        memprof.summary(loss, params, x, depth=0)


def test_running_out_of_memory_is_explained_and_raised(capsys: pytest.CaptureFixture[str]) -> None:
    import jax
    import jax.numpy as jnp

    def step(x: jax.Array) -> jax.Array:
        return (x @ x.T).sum()

    def failing(x: jax.Array) -> jax.Array:
        if isinstance(x, jax.core.Tracer):
            return step(x)
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4096 bytes.")

    x = jnp.ones((32, 8))
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        memprof.explain_oom(target="cpu")(failing)(x)
    explained = capsys.readouterr().err
    assert "a device is out of memory" in explained
    assert "Contents of the footprint" in explained
    with pytest.raises(jax.errors.JaxRuntimeError), memprof.explain_oom(step, x, target="cpu"):
        failing(x)
    assert "Contents of the footprint" in capsys.readouterr().err
    with pytest.raises(ValueError, match="mine"), memprof.explain_oom(step, x, target="cpu"):
        raise ValueError("mine")
    assert capsys.readouterr().err == ""


def test_what_cannot_be_explained_does_not_hide_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    import jax

    @memprof.explain_oom(target="cpu")
    def failing(x: float) -> float:
        if isinstance(x, jax.core.Tracer):
            raise ValueError("not traceable")
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    with pytest.raises(jax.errors.JaxRuntimeError):
        failing(1.0)
    assert "memprof cannot explain it: ValueError: not traceable" in capsys.readouterr().err


def test_every_function_of_the_api_takes_a_step_spec() -> None:
    def scale(weights: jax.Array, factor: float) -> jax.Array:
        return jnp.tanh(weights) * factor

    weights = jax.ShapeDtypeStruct((64, 64), "float32")
    spec = memprof.StepSpec(scale, (weights, 2.0), donate_argnums=0, static_argnums=1, workload="scaling")
    profile = memprof.profile(scale, weights, 2.0, donate_argnums=0, static_argnums=1, target="cpu")

    assert memprof.profile(spec, target="cpu").footprint_bytes == profile.footprint_bytes == 64 * 64 * 4
    assert memprof.profile(spec, target="cpu").report.label == "scaling"
    assert memprof.profile(spec, target="cpu", label="mine").report.label == "mine"
    assert memprof.peak(spec, target="cpu") == profile.footprint_bytes
    assert memprof.summary(spec, target="cpu").report.footprint_bytes == profile.footprint_bytes
    assert memprof.advise(spec, target="cpu").report.label == "scaling"
    assert memprof.plan(spec, target="cpu", memory="1GiB").placement.num_blocks == 0  # it has no gradients


def _mean_square(params: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    return jnp.mean(jnp.tanh(jnp.tanh(batch["x"] @ params["w"]) @ params["w"]) ** 2)


def _train_spec() -> memprof.TrainSpec:
    params = {"w": jax.ShapeDtypeStruct((64, 64), "float32")}
    return memprof.TrainSpec(_mean_square, params, optax.adam(0.1), {"x": jax.ShapeDtypeStruct((16, 64), "float32")})


@pytest.mark.with_one_jax
def test_every_function_of_the_api_takes_a_train_spec() -> None:
    spec = _train_spec()
    profile = memprof.profile(spec, target="cpu")

    assert profile.report.label == "_mean_square"
    assert profile.by("category")["params"] == 64 * 64 * 4
    assert memprof.profile(spec, target="cpu", label="mine").report.label == "mine"
    assert memprof.peak(spec, target="cpu") == profile.footprint_bytes
    assert memprof.summary(spec, target="cpu").report.footprint_bytes == profile.footprint_bytes
    assert memprof.plan(spec, target="cpu", memory="1GiB").label == "_mean_square"
    advice = {each.rule: each for each in memprof.advise(spec, target="cpu")}
    assert advice["donate_state"].is_compiled
    with pytest.raises(memprof.MemprofError, match=r"a memprof\.TrainSpec holds its own arguments"):
        memprof.peak(spec, target="cpu", donate_argnums=0)


@pytest.mark.parametrize(
    ("args", "options", "repeated"),
    [((1,), {}, "positional arguments"), ((), {"donate_argnums": 0, "x": 1}, "x, donate_argnums")],
)
def test_a_step_spec_beside_other_arguments_is_refused(
    args: tuple[object, ...], options: dict[str, object], repeated: str
) -> None:
    spec = memprof.StepSpec(jnp.tanh, (jax.ShapeDtypeStruct((4,), "float32"),))

    with pytest.raises(memprof.MemprofError, match=f"leave out {repeated}$"):
        memprof.profile(spec, *args, **options)
