"""What memprof says of training steps that are written with libraries: exact bytes, and true statements beside them.

The facts were verified by hand, buffer by buffer, against the step's own code. A library that is not installed is
skipped; `pip install ".[libraries]"` installs them all.
"""

from __future__ import annotations

import functools
import linecache
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest
from libraries import steps

import memprof
from memprof.analysis.records.categories import Category
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.api import profile_spec
from memprof.studies.advice.advise import advise

STEPS_FILE = Path(steps.__file__).resolve()


class Fact(NamedTuple):
    """A buffer that is among the ten largest; `line` is a part of the source line in the step's own code."""

    shape: tuple[int, ...]
    category: str
    module: str
    line: str = ""


class Case(NamedTuple):
    library: str
    step: Callable[[], steps.LibraryStep]
    facts: tuple[Fact, ...]
    on_gpu: bool = False


_SPLINE = "bijection/bijection/bijection/bijections/0/masked_autoregressive_mlp/layers/1"
CASES = (
    Case(
        "jraph",
        steps.jraph_graph_network,
        (
            Fact((1000, 96), "activations", "", "jraph.GraphNetwork"),  # 32 of edges, senders and receivers each
            Fact((1000, 64), "activations", "Dense_0", "nn.Dense(64)"),
            Fact((160, 64), "optimizer_state", "Dense_1"),  # 32 of nodes, 64 of edges sent and received
            Fact((1000, 8), "batch", ""),
        ),
        on_gpu=True,
    ),
    Case(
        "numpyro",
        steps.numpyro_svi,
        (
            # It reads no parameters: `hidden` is a sample of those of both `0` and `1`.
            Fact((256, 128), "activations", "", "jnp.tanh(x @ hidden)"),
            Fact((256, 128), "cotangents", "", "jnp.tanh(x @ hidden)"),
            Fact((16, 128), "optimizer_state", "1"),
            Fact((256, 16), "batch", ""),
        ),
    ),
    Case(
        "flowjax",
        steps.flowjax_flow,
        (
            Fact((2, 128, 8, 6), "activations", _SPLINE, "log_prob(x)"),
            Fact((2, 128, 32), "optimizer_state", f"{_SPLINE}/weight/args"),
        ),
    ),
    Case(
        "diffrax",
        steps.diffrax_neural_ode,
        (
            Fact((64, 64, 64), "gradients", "field/mlp/layers/1", "diffrax.diffeqsolve"),  # of each example
            Fact((64, 64, 4), "gradients", "field/mlp/layers/0", "diffrax.diffeqsolve"),
            Fact((64, 4, 64), "gradients", "field/mlp/layers/2", "diffrax.diffeqsolve"),
            Fact((64, 64), "optimizer_state", "field/mlp/layers/1"),
        ),
    ),
    Case(
        "penzai",
        steps.penzai_mlp,
        (
            Fact((64, 256), "activations", "0/value", 'tag("batch", "features")'),
            Fact((64, 256), "activations", "", 'tag("batch", "features")'),  # of relu, between two layers
            Fact((64, 256), "cotangents", "4/value", 'tag("batch", "features")'),
            Fact((256, 256), "optimizer_state", "2/value"),
        ),
    ),
    Case(
        "ott",
        steps.ott_sinkhorn,
        (
            Fact((128, 96), "forward_temps", "", "linear.solve("),
            Fact((128, 64), "activations", "hidden", 'name="hidden"'),
            Fact((128, 2), "activations", "points", 'name="points"'),
            Fact((96, 2), "batch", ""),
        ),
        on_gpu=True,
    ),
    Case(
        "equimo",
        steps.equimo_vision_transformer,
        (
            Fact((256, 136), "activations", "blocks/0/blocks/0/mlp/fc1", "jax.vmap(model)(images, keys)"),
            Fact((256, 136), "activations", "blocks/0/blocks/1/mlp/fc1", "jax.vmap(model)(images, keys)"),
            Fact((64, 256), "params", "blocks/0/blocks/0/mlp/fc2"),
        ),
    ),
    Case(
        "e3nn_jax",
        steps.e3nn_network,
        (
            Fact((256, 16), "activations", "mix", 'name="mix"'),
            Fact((256, 16), "cotangents", "combine", 'name="combine"'),
            Fact((256, 16), "activations", "", "e3nn.scalar_activation"),
            Fact((256, 3), "batch", ""),
        ),
        on_gpu=True,
    ),
    Case(
        "tinygp",
        steps.tinygp_kernel,
        (
            Fact((128, 128, 4), "cotangents", "", "tinygp.GaussianProcess("),  # of differences of all pairs
            Fact((128, 128), "activations", "", "tinygp.GaussianProcess("),
            Fact((128, 4), "activations", "", 'jnp.tanh(x @ params["features"])'),
        ),
    ),
    Case(
        "qwix",
        steps.qwix_lora,
        (
            Fact((64, 256), "activations", "base/up", 'name="up"'),
            Fact((64, 256), "cotangents", "base/down", 'name="down"'),
            Fact((32, 256), "params", "base/up"),
            Fact((4, 256), "params", "adapters/up"),
        ),
        on_gpu=True,
    ),
)
ON = [pytest.param(case, "cpu", id=f"{case.library} cpu") for case in CASES] + [
    pytest.param(case, "h100-80gb", id=f"{case.library} h100-80gb") for case in CASES if case.on_gpu
]


@functools.cache
def profiled(case: Case, target: str) -> tuple[steps.LibraryStep, memprof.Profile]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what libraries do with other libraries is not for us to judge
        pytest.importorskip(case.library, exc_type=ImportError)
        step = case.step()
        return step, profile_spec(step.spec, target=target)


@pytest.mark.parametrize(("case", "target"), ON)
def test_arguments_are_exact_and_every_byte_is_explained(case: Case, target: str) -> None:
    step, profile = profiled(case, target)
    report = profile.report
    unused: dict[str, int] = {}  # jit drops what the step does not read
    for leaf in report.unused_arguments:
        unused[leaf.role.value] = unused.get(leaf.role.value, 0) + leaf.size_bytes
    trees = {Category.PARAMS: step.params, Category.OPTIMIZER_STATE: step.opt_state, Category.BATCH: step.batch}
    found = {category: report.categories[category] + unused.get(category.value, 0) for category in trees}
    assert found == {category: size_bytes(tree) for category, tree in trees.items()}
    assert sum(report.categories.values()) == report.footprint_bytes
    assert report.categories[Category.UNATTRIBUTED] < 0.01 * report.footprint_bytes
    assert report.doubts == ()


@pytest.mark.parametrize(("case", "target"), ON)
def test_the_largest_buffers_come_from_the_steps_own_lines(case: Case, target: str) -> None:
    _, profile = profiled(case, target)
    largest = profile.buffers[:10]
    files = {Path(buffer.source.rpartition(":")[0]) for buffer in largest if buffer.source}
    assert files == {STEPS_FILE}
    assert Category.UNATTRIBUTED not in {buffer.category for buffer in largest}


@pytest.mark.parametrize("case", CASES, ids=[case.library for case in CASES])
def test_the_largest_buffers_are_what_they_are_said_to_be(case: Case) -> None:
    _, profile = profiled(case, "cpu")
    largest = profile.buffers[:10]
    missing = [fact for fact in case.facts if not any(_is(fact, buffer) for buffer in largest)]
    assert missing == []


def _is(fact: Fact, buffer: LiveBuffer) -> bool:
    """Whether a buffer is the one that is meant; the order of axes is the compiler's, as are those of one element."""
    same_axes = sorted(n for n in buffer.shape if n != 1) == sorted(fact.shape)
    return (
        same_axes
        and (str(buffer.category), buffer.module) == (fact.category, fact.module)
        and (fact.line in _text(buffer.source) if fact.line else not buffer.source)
    )


def _text(source: str) -> str:
    file, _, line = source.rpartition(":")
    return linecache.getline(file, int(line)) if file else ""


def size_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))


def test_weight_only_products_of_qwix_dequantise_their_weights() -> None:
    """On a GPU each holds its weights in bfloat16, too: 8192 x 2048 x 2 bytes. The advice names that array."""
    qwix = pytest.importorskip("qwix")
    dtype = jax.numpy.bfloat16

    def layers(quantise: Callable[..., Any]) -> dict[str, Any]:
        shapes = {"up": (2048, 8192), "down": (8192, 2048), "head": (2048, 1000)}
        return {
            name: quantise(jax.numpy.zeros(shape, dtype), "int8", channelwise_axes=(1,))
            for name, shape in shapes.items()
        }

    def step(weights: Any, inputs: jax.Array) -> jax.Array:
        hidden = qwix.dot(jax.nn.silu(qwix.dot(inputs, weights["up"])), weights["down"])
        return qwix.dot(hidden, weights["head"])

    weights = jax.eval_shape(lambda: layers(qwix.quantize))
    spec = memprof.StepSpec(step, (weights, steps.array(16, 2048, dtype=dtype)))
    profile = profile_spec(spec, target="h100-80gb")
    assert profile.categories[Category.PARAMS] == size_bytes(weights)
    found = [each for each in advise(profile.report) if each.rule == "dequantised_weights"]
    assert [each.saving_bytes for each in found] == [8192 * 2048 * 2]
