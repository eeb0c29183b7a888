"""The laws of an optimizer. A new one, ours or of optax, is tested by these without a line of its own."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import memprof.workloads.optimizers.adam8bit
import memprof.workloads.optimizers.galore
from memprof.analysis.attribution.module_paths import ModulePaths
from memprof.workloads import registry
from memprof.workloads.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("quick_compiles")
OPTIMIZERS = [pytest.param(optimizer, id=optimizer.name) for optimizer in registry.optimizers()]
NUM_STEPS = 40


def shapes(dtype) -> dict:
    """Parameters of every kind: a large matrix, a square one, small ones, vectors, a stack of layers, a table."""
    leaf = functools.partial(jax.ShapeDtypeStruct, dtype=dtype)
    return {
        "dense": {"kernel": leaf((130, 200)), "bias": leaf((200,))},
        "square": {"kernel": leaf((128, 128))},
        "thin": {"kernel": leaf((3, 50)), "scale": leaf((50,))},
        "layers": {"kernel": leaf((3, 40, 33)), "bias": leaf((3, 33))},
        "embedding": {"embedding": leaf((70, 64))},
    }


def create(optimizer) -> optax.GradientTransformation:
    return optimizer.create(TrainConfig(learning_rate=1e-2))


def avals(tree) -> list:
    return [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(tree)]


def init_params() -> dict:
    """A regression in two layers, large enough for matrices that are factored, projected or quantised."""
    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    return {
        "first": {"kernel": jax.random.normal(keys[0], (130, 132)) / 12, "bias": jnp.zeros(132)},
        "second": {"kernel": jax.random.normal(keys[1], (132, 4)) / 12, "bias": jnp.zeros(4)},
    }


def predict(params, inputs):
    hidden = jnp.tanh(inputs @ params["first"]["kernel"] + params["first"]["bias"])
    return hidden @ params["second"]["kernel"] + params["second"]["bias"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_code_for_a_user_makes_an_optimizer_with_the_same_state(optimizer):
    params = {"dense": shapes("float32")["dense"]}
    names = {"optax": optax, "memprof": memprof, "learning_rate": 1e-2, "weight_decay": 1e-2}
    by_code = eval(optimizer.code, names)
    assert avals(jax.eval_shape(by_code.init, params)) == avals(jax.eval_shape(create(optimizer).init, params))


@functools.cache
def trainer(name):
    """Returns a compiled function that trains for some steps, on gradients that `scale` multiplies; and its start."""
    transformation = create(registry.optimizer(name))
    inputs = jax.random.normal(jax.random.PRNGKey(1), (64, 130))
    targets = jnp.sin(inputs[:, :4]) + 0.5 * inputs[:, 4:8]

    def loss(params):
        return jnp.mean(jnp.square(predict(params, inputs) - targets))

    def step(carry, scale):
        params, state = carry
        value, gradients = jax.value_and_grad(loss)(params)
        gradients = jax.tree.map(lambda gradient: scale * gradient, gradients)
        updates, state = transformation.update(gradients, state, params)
        return (optax.apply_updates(params, updates), state), value

    # The scan itself would refuse a state whose shapes, dtypes or structure changed.
    train = jax.jit(lambda params, state, scales: jax.lax.scan(step, (params, state), scales), donate_argnums=(0, 1))
    return train, jax.jit(transformation.init)


def run(name, scales):
    train, init = trainer(name)
    params = init_params()
    (params, state), losses = train(params, init(params), jnp.asarray(scales, jnp.float32))
    return jax.device_get((params, state, losses))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_describes_itself(optimizer):
    texts = (optimizer.name, optimizer.keeps, optimizer.state_cost, optimizer.reference)
    assert all(texts)
    assert not any("\n" in text for text in texts)
    assert f"{optimizer.state_cost} bytes a float32 parameter" in optimizer.summary


def test_names_are_unique_and_can_be_part_of_a_label():
    names = [optimizer.name for optimizer in registry.optimizers()]
    assert len(set(names)) == len(names)
    assert all(name and name.replace("-", "").isalnum() and name == name.lower() for name in names)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_its_cost_in_words_is_its_cost(optimizer):
    """One that is a plain number is the bytes of a large matrix, to the two digits that it has."""
    params = {"kernel": jax.ShapeDtypeStruct((4096, 4096), jnp.float32)}
    per_param = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(optimizer.state(params))) / 4096**2
    words = optimizer.state_cost.split(" (")[0]
    if " to " in words:
        lowest, highest = map(float, words.split(" to "))
        assert lowest <= round(per_param, 2) <= highest
    else:
        values = [part.replace("rows", "4096").replace("columns", "4096").split("/") for part in words.split(" + ")]
        expected = sum(float(value[0]) / math.prod(map(float, value[1:])) for value in values)
        assert round(per_param, 2) == round(expected, 2)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_update_keeps_structure_shapes_and_dtypes(optimizer, dtype):
    params = shapes(dtype)
    transformation = create(optimizer)
    state = jax.eval_shape(transformation.init, params)
    updates, new_state = jax.eval_shape(transformation.update, params, state, params)
    assert jax.tree.structure(new_state) == jax.tree.structure(state)
    assert avals(new_state) == avals(state)
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    assert [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(updates)] == [
        (leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(params)
    ]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_abstract_state_is_the_real_one(optimizer):
    _, init = trainer(optimizer.name)
    state = init(init_params())
    abstract = jax.eval_shape(init, init_params())
    assert jax.tree.structure(abstract) == jax.tree.structure(state)
    assert avals(abstract) == avals(state)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_most_of_its_state_belongs_to_the_modules_of_the_parameters(optimizer):
    """The analysis finds the module of a leaf by the end of its path, which is that of the parameter."""
    params = shapes(jnp.float32)
    paths = [f"state.params{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    modules = ModulePaths(tuple(paths))
    state = jax.eval_shape(create(optimizer).init, params)
    without = [
        (path, leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        if not modules.of_argument(f"state.opt_state{jax.tree_util.keystr(path)}")
    ]
    # sm3 keeps a list for each parameter, so that the path of its vectors ends with a number.
    assert all(leaf.ndim <= 1 for _, leaf in without)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_trains_and_does_so_again_to_the_bit(optimizer):
    """The state is donated too: a leaf that no result can take the memory of is a warning, hence an error here."""
    first = run(optimizer.name, np.ones(NUM_STEPS))
    _, _, losses = first
    assert np.isfinite(losses).all()
    assert np.mean(losses[-4:]) < losses[0]
    again = run(optimizer.name, np.ones(NUM_STEPS))
    assert jax.tree.all(jax.tree.map(np.array_equal, first, again))


@pytest.mark.parametrize("pattern", ["none", "first", "last"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gradients_of_zero_do_no_harm(optimizer, pattern):
    """All steps without a gradient, all but the first, all but the last: nothing is divided by zero."""
    scales = np.zeros(NUM_STEPS)
    scales[{"none": [], "first": [0], "last": [-1]}[pattern]] = 1
    params, state, losses = run(optimizer.name, scales)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((params, state, losses)))
    if pattern == "none":  # what is left is the decay of the weights (and of the moments that yogi starts with)
        for leaf, start in zip(jax.tree.leaves(params), jax.tree.leaves(init_params()), strict=True):
            assert (np.abs(leaf) <= np.abs(start) + 1e-3).all()
