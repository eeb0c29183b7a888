"""Advice whose savings are compiled: equal to the footprint when the printed code is pasted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import indent
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from integration.command import Command

import memprof as package
from memprof.analysis.records.rewrites import ExamplesInChunks
from memprof.studies.advice.advice import Advice, Meaning

pytestmark = pytest.mark.filterwarnings("ignore:Some donated buffers were not usable:UserWarning")

_PLAIN = """
import jax, jax.numpy as jnp, memprof, optax

def block(w, x, *, name):
    h = jax.nn.gelu(x @ w["up"])
    return x + jnp.sin(h) @ w["down"] if name == "layer" else x

def loss(params, x, y):
    for w in params:
        x = block(w, x, name="layer")
    return jnp.mean((x - y) ** 2)

optimizer = optax.adam(1e-3)

def step(params, state, x, y):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value

S = jax.ShapeDtypeStruct
params = [{"up": S((64, 256), jnp.float32), "down": S((256, 64), jnp.float32)} for _ in range(3)]
x = S((512, 64), jnp.float32)
args = (params, jax.eval_shape(optimizer.init, params), x, x)

def step_spec():
    return memprof.StepSpec(step, args, workload="plain")
"""
_SCANNED = """
import jax, jax.numpy as jnp

def step(weights, x):
    def loss(weights):
        def body(x, w):
            return x + jnp.sin(jnp.tanh(x @ w["up"]) @ w["down"]), None
        # here
        return jnp.sum(jax.lax.scan(body, x, weights)[0] ** 2)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

step = jax.jit(step)
S = jax.ShapeDtypeStruct
args = ({"up": S((8, 64, 256), jnp.float32), "down": S((8, 256, 64), jnp.float32)}, S((512, 64), jnp.float32))
"""
_NNX = """
import jax, jax.numpy as jnp, optax
from flax import nnx

class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)
    def __call__(self, x):
        return x + self.down(nnx.gelu(self.up(x)))

class Net(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(64, rngs) for _ in range(3)])
    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x

@nnx.jit
def step(model, optimizer, x, y):
    value, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, gradients)
    return value

x = jax.ShapeDtypeStruct((512, 64), jnp.float32)
model = nnx.eval_shape(lambda: Net(nnx.Rngs(0)))
args = (model, nnx.eval_shape(lambda: nnx.Optimizer(Net(nnx.Rngs(0)), optax.adam(1e-3), wrt=nnx.Param)), x, x)
"""
_EQUINOX = """
import equinox as eqx, jax, jax.numpy as jnp

class Block(eqx.Module):
    norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    def __init__(self, width, key):
        first, second = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(width)
        self.up = eqx.nn.Linear(width, 4 * width, key=first)
        self.down = eqx.nn.Linear(4 * width, width, key=second)
    def __call__(self, x, *, inference=False):
        hidden = jax.vmap(self.up)(jax.vmap(self.norm)(x))
        return x + jax.vmap(self.down)(hidden if inference else jax.nn.gelu(hidden))

class Net(eqx.Module):
    blocks: list
    def __init__(self, key):
        self.blocks = [Block(64, each) for each in jax.random.split(key, 3)]
    def __call__(self, x):
        for block in self.blocks:
            x = block(x, inference=False)
        return x

@eqx.filter_jit
def step(model, x, y):
    gradients = eqx.filter_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    return jax.tree.map(lambda w, g: w - 0.1 * g, model, gradients)

x = jax.ShapeDtypeStruct((512, 64), jnp.float32)
args = (eqx.filter_eval_shape(Net, jax.random.key(0)), x, x)
"""
_LINEN = """
import jax, jax.numpy as jnp, optax
from flax import linen as nn
from flax.training.train_state import TrainState

class Block(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        hidden = nn.Dense(256)(x)
        return x + nn.Dense(64)(nn.gelu(hidden) if train else hidden)

class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        for _ in range(3):
            x = Block()(x, train)
        return x

def create():
    net = Net()
    params = net.init(jax.random.key(0), jnp.zeros((2, 64)), True)["params"]
    return TrainState.create(apply_fn=net.apply, params=params, tx=optax.sgd(0.1))

@jax.jit
def step(state, x, y):
    loss = lambda params: jnp.mean((state.apply_fn({"params": params}, x, True) - y) ** 2)
    return state.apply_gradients(grads=jax.grad(loss)(state.params))

x = jax.ShapeDtypeStruct((512, 64), jnp.float32)
args = (jax.eval_shape(create), x, x)
"""
_LANGUAGE_MODEL = """
import functools, jax, jax.numpy as jnp

def attend(x, w):
    query, key, value = jnp.split(x @ w, 3, -1)
    logits = jnp.einsum("btd,bsd->bts", query, key)
    mask = jnp.tril(jnp.ones(logits.shape[1:], bool))
    return x + jax.nn.softmax(jnp.where(mask, logits, -1e9)) @ value

def loss(params, tokens):
    x = params["embed"][tokens[:, :-1]]
    for w in params["layers"]:
        x = attend(x, w)
    logp = jax.nn.log_softmax(x @ params["embed"].T)
    return -jnp.take_along_axis(logp, tokens[:, 1:, None], -1).mean()

@functools.partial(jax.jit, donate_argnames="params")
def step(params, tokens):
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params, tokens))

S = jax.ShapeDtypeStruct
params = {"embed": S((1024, 16), jnp.float32), "layers": [S((16, 48), jnp.float32)] * 2}
args = (params, S((4, 201), jnp.int32))
"""
_PROMPTS = """
import jax, jax.numpy as jnp

@jax.jit
def step(embed, tokens, lengths):
    logits = jnp.tanh(embed[tokens]) @ embed.T
    return jax.nn.softmax(logits[jnp.arange(4), lengths - 1])

S = jax.ShapeDtypeStruct
args = (S((2048, 16), jnp.float32), S((4, 200), jnp.int32), S((4,), jnp.int32))
"""
_HALF_PRECISION = """
import functools, jax, jax.numpy as jnp

def attend(x, w):
    q, k, v = (each.reshape(8, 256, 4, 16) for each in jnp.split(x @ w, 3, -1))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / 4
    scores = jnp.where(jnp.tril(jnp.ones((256, 256), bool)), scores, -1e9)
    probabilities = jax.nn.softmax(scores.astype(jnp.float32)).astype(x.dtype)
    return x + jnp.einsum("bhts,bshd->bthd", probabilities, v).reshape(x.shape)

def loss(params, x):
    layer = jax.checkpoint(lambda x, w: (attend(x, w), None), prevent_cse=False)
    return jnp.mean(jax.lax.scan(layer, x, params)[0].astype(jnp.float32) ** 2)

@functools.partial(jax.jit, donate_argnames="params")
def step(params, x):
    return params - 0.1 * jax.grad(loss)(params, x)

args = (jax.ShapeDtypeStruct((3, 64, 192), jnp.bfloat16), jax.ShapeDtypeStruct((8, 256, 64), jnp.bfloat16))
"""
_DECODE = """
import functools, jax, jax.numpy as jnp

def layer(x, w, keys, values, place):
    query, key, value = ((x @ each)[:, None] for each in w)
    keys = jax.lax.dynamic_update_slice(keys, key, (0, place, 0))
    values = jax.lax.dynamic_update_slice(values, value, (0, place, 0))
    scores = jnp.where(jnp.arange(keys.shape[1]) <= place, jnp.einsum("btd,bsd->bts", query, keys), -1e9)
    return x + jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores), values)[:, 0], keys, values

@functools.partial(jax.jit, donate_argnums=1)
def step(params, cache, x, place):
    def body(x, given):
        x, keys, values = layer(x, *given, place)
        return x, (keys, values)
    x, (keys, values) = jax.lax.scan(body, x, (params, cache["k"], cache["v"]))
    return x, {"k": keys, "v": values}

S = jax.ShapeDtypeStruct
cache = {name: S((4, 8, 512, 64), jnp.bfloat16) for name in "kv"}
args = (S((4, 3, 64, 64), jnp.bfloat16), cache, S((8, 64), jnp.bfloat16), S((), jnp.int32))
"""
_REPLICATED = """
import functools, jax, jax.numpy as jnp, memprof, optax
from jax.sharding import NamedSharding, PartitionSpec

optimizer = optax.adam(1e-3)

def loss(params, batch):
    for w in params:
        batch = batch + jnp.tanh(batch @ w["up"]) @ w["down"]
    return jnp.mean(batch ** 2)

@functools.partial(jax.jit, donate_argnums=(0, 1))
def step(params, opt_state, batch):
    updates, opt_state = optimizer.update(jax.grad(loss)(params, batch), opt_state, params)
    return optax.apply_updates(params, updates), opt_state

mesh = memprof.mesh("h100-80gb", {"data": 4})

def whole(leaf):
    return jax.ShapeDtypeStruct(leaf.shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec()))

S = jax.ShapeDtypeStruct
params = [{"up": whole(S((64, 256), jnp.float32)), "down": whole(S((256, 64), jnp.float32))} for _ in range(2)]
opt_state = jax.eval_shape(optimizer.init, params)
opt_state = optax.tree_map_params(optimizer, whole, opt_state)
batch = whole(S((256, 64), jnp.float32))
"""
_ACCUMULATING = """
import functools, jax, jax.numpy as jnp

def loss(params, x):
    for w in params:
        x = x + jnp.tanh(x @ w["up"]) @ w["down"]
    return jnp.mean(x ** 2)

@functools.partial(jax.jit, donate_argnums=0)
def step(params, x):
    def add(total, part):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(params, part)), None
    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), x.reshape(4, -1, x.shape[1]))
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, total)

S = jax.ShapeDtypeStruct
args = ([{"up": S((256, 1024), jnp.float32), "down": S((1024, 256), jnp.float32)}] * 3, S((64, 256), jnp.float32))
"""
_PROGRAMS = {"plain": _PLAIN, "nnx": _NNX, "equinox": _EQUINOX, "linen": _LINEN}


_INSIDE = """
import jax, jax.numpy as jnp, optax

def make():
    S = jax.ShapeDtypeStruct
    params = {"w": S((256, 256), jnp.float32)}
    optimizer = optax.adam(1e-3)
    # after optimizer
    def step(params, state, x):
        gradients = jax.grad(lambda params: jnp.mean((x @ params["w"]) ** 2))(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state
    # after step
    return step, (params, jax.eval_shape(optimizer.init, params), S((64, 256), jnp.float32))

step, args = make()
"""


def _names(source: str, folder: Path, name: str) -> dict[str, Any]:
    """The names of a program that is a file, as JAX's source lines need it."""
    path = folder / f"{name}.py"
    path.write_text(source)
    names: dict[str, Any] = {"__name__": name}
    exec(compile(source, str(path), "exec"), names)
    return names


def _compiled(advice: tuple[Advice, ...]) -> dict[str, Advice]:
    return {each.rule: each for each in advice if each.is_compiled}


@pytest.mark.parametrize("name", ["plain", "nnx", "equinox", "linen"])
@pytest.mark.slow_cases
def test_pasted_code_has_the_footprint_that_is_said(tmp_path: Path, name: str) -> None:
    own = _names(_PROGRAMS[name], tmp_path, name)
    before = package.profile(own["step"], *own["args"], target="cpu").footprint_bytes
    advice = _compiled(package.advise(own["step"], *own["args"], target="cpu"))
    assert "donate_state" in advice
    if name != "equinox":  # on the CPU, XLA of jaxlib 0.10 merges what Equinox's checkpoint computes again
        assert any(rule.startswith("recompute") for rule in advice)
    assert ("narrow_optimizer_state" in advice) == (name == "plain")
    for rule, each in advice.items():
        assert each.compiled is not None
        is_other = rule == "narrow_optimizer_state"
        assert each.compiled.meaning in ((Meaning.DIFFERENT,) if is_other else (Meaning.EQUAL, Meaning.CLOSE)), rule
        pasted = _names(_PROGRAMS[name], tmp_path, name)
        exec(each.proposal.how_to, pasted)
        if is_other:
            pasted["args"] = (own["params"], jax.eval_shape(pasted["optimizer"].init, own["params"]), *own["args"][2:])
        if (name, rule) == ("equinox", "donate_state"):  # what is kept comes first
            pasted["args"] = (own["args"][1:], own["args"][0])
        by_hand = package.profile(pasted["step"], *pasted["args"], target="cpu").footprint_bytes
        assert by_hand == each.compiled.footprint_bytes == before - each.saving_bytes, rule


@pytest.mark.parametrize(
    ("rule", "place"), [("narrow_optimizer_state", "# after optimizer"), ("donate_state", "# after step")]
)
@pytest.mark.slow_cases
def test_code_for_a_name_within_a_function_runs_there(tmp_path: Path, rule: str, place: str) -> None:
    own = _names(_INSIDE, tmp_path, "inside")
    each = _compiled(package.advise(own["step"], *own["args"], target="cpu"))[rule]
    at_the_top, _, rest = each.proposal.how_to.partition("\n\n")
    assert at_the_top.startswith("# at the top of the file\nimport jax")
    pasted = _names(at_the_top + _INSIDE.replace(f"    {place}", indent(rest, "    ")), tmp_path, "pasted_inside")
    by_hand = package.profile(pasted["step"], *pasted["args"], target="cpu").footprint_bytes
    assert each.compiled is not None
    assert by_hand == each.compiled.footprint_bytes


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_a_body_within_the_step_has_its_checkpoint_too(tmp_path: Path) -> None:
    own = _names(_SCANNED, tmp_path, "scanned")
    advice = _compiled(package.advise(own["step"], *own["args"], target="cpu"))["recompute_nothing"]
    code = advice.proposal.how_to
    assert "after the definition of body" in code
    pasted = _names(_SCANNED.replace("        # here\n", "".join(f"        {line}\n" for line in code.splitlines())),
                    tmp_path, "pasted")  # fmt: skip
    by_hand = package.profile(pasted["step"], *pasted["args"], target="cpu")
    assert advice.compiled is not None
    assert by_hand.footprint_bytes == advice.compiled.footprint_bytes
    assert advice.compiled.recomputed_flops == by_hand.report.recomputed_flops > 0


_WAVES = """
import jax, jax.numpy as jnp

def velocity(net, points):
    for w in net:
        points = jnp.sin(points @ w)
    return points[:, 0].reshape(256, 256)

def simulated(net, points, scan=jax.lax.scan):
    factor = velocity(net, points)
    def propagate(carry, _):
        before, now = carry
        after = 2 * now - before + factor * (jnp.roll(now, 1) - now)
        return (now, after), after[0]
    start = jnp.zeros((256, 256)), jnp.ones((256, 256))
    return scan(propagate, start, None, length=LENGTH)[1]

def step(net, points, observed, scan=jax.lax.scan):
    return jax.grad(lambda net: jnp.mean((simulated(net, points, scan) - observed) ** 2))(net)

S = jax.ShapeDtypeStruct
args = [S((8, 8), jnp.float32)] * 4, S((65536, 8), jnp.float32), S((LENGTH, 256), jnp.float32)
"""


@pytest.mark.slow
def test_a_long_scan_is_advised_in_groups_of_iterations(tmp_path: Path) -> None:
    """A checkpoint around the iterations saves nothing: they keep an array of 256 KiB each, as without it."""
    own = _names(_WAVES.replace("LENGTH", "256"), tmp_path, "waves")
    before = package.profile(own["step"], *own["args"], target="cpu")
    assert before.footprint_bytes > 256 * 2**18
    each = _compiled(package.advise(own["step"], *own["args"], target="cpu"))["recompute_in_groups"]
    assert each.compiled is not None
    assert each.compiled.saving_bytes > before.footprint_bytes / 2
    assert each.compiled.meaning in (Meaning.EQUAL, Meaning.CLOSE, Meaning.SAME_OPERATIONS)
    assert "each group of 16 iterations" in each.proposal.what
    assert "propagate at waves.py:" in each.proposal.evidence
    exec(each.proposal.code_to_paste, pasted := {"step": own["step"]})
    by_hand = package.profile(pasted["step"], *own["args"], target="cpu")
    assert by_hand.footprint_bytes == each.compiled.footprint_bytes


_CONTRASTIVE = """
import jax, jax.numpy as jnp

def encoded(params, x):
    return jnp.tanh(jax.nn.relu(x @ params["first"]) @ params["last"])

def loss(params, images, texts):
    one, other = encoded(params, images), encoded(params, texts)
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(one @ other.T)))

@jax.jit
def step(params, images, texts):
    return jax.tree.map(lambda w, g: w - g, params, jax.grad(loss)(params, images, texts))

S = jax.ShapeDtypeStruct
args = {"first": S((16, 4096), jnp.float32), "last": S((4096, 8), jnp.float32)}, *[S((256, 16), jnp.float32)] * 2
"""


@pytest.mark.slow
def test_a_contrastive_loss_is_advised_in_chunks_of_examples(tmp_path: Path) -> None:
    """Each example is compared with all others, so that gradients cannot be accumulated over minibatches."""
    own = _names(_CONTRASTIVE, tmp_path, "contrastive")
    before = package.profile(own["step"], *own["args"], target="cpu")
    assert before.footprint_bytes > 256 * 4096 * 4
    advice = _compiled(package.advise(own["step"], *own["args"], target="cpu"))
    assert "accumulated_gradients" not in advice
    each = advice["chunked_examples"]
    assert each.compiled is not None
    assert each.compiled.saving_bytes > before.footprint_bytes / 2
    assert each.compiled.meaning in (Meaning.CLOSE, Meaning.SAME_OPERATIONS)
    assert "8 chunks" in each.proposal.what
    exec(each.proposal.code_to_paste, pasted := {"step": own["step"]})
    by_hand = package.profile(pasted["step"], *own["args"], target="cpu")
    assert by_hand.footprint_bytes == each.compiled.footprint_bytes
    plan = package.plan(
        own["step"],
        *own["args"],
        memory=each.compiled.footprint_bytes * 3 // 2,
        allow="accumulate,chunked-examples",
        target="cpu",
    )
    assert [each.rewrite for each in plan.changes] == [ExamplesInChunks(number=8)]  # two and four are not enough
    assert plan.best is not None
    assert plan.best.footprint_bytes == each.compiled.footprint_bytes


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_a_short_scan_is_not_advised_in_groups(tmp_path: Path) -> None:
    own = _names(_WAVES.replace("LENGTH", "63"), tmp_path, "few_waves")
    assert "recompute_in_groups" not in {each.rule for each in package.advise(own["step"], *own["args"], target="cpu")}


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_a_loss_in_chunks_and_blocks_of_queries_are_compiled(tmp_path: Path) -> None:
    own = _names(_LANGUAGE_MODEL, tmp_path, "model")
    before = package.profile(own["step"], *own["args"], target="cpu").footprint_bytes
    every = package.advise(own["step"], *own["args"], target="cpu")
    advice = _compiled(every)
    assert {"chunked_loss", "chunked_attention"} <= advice.keys()
    assert not {"chunked_loss", "flash_attention"} & {each.rule for each in every if not each.is_compiled}
    for rule in ("chunked_loss", "chunked_attention"):
        each = advice[rule]
        assert each.compiled is not None
        assert each.compiled.meaning in (Meaning.EQUAL, Meaning.CLOSE)
        pasted = _names(_LANGUAGE_MODEL, tmp_path, "model")
        exec(each.proposal.how_to, pasted)
        by_hand = package.profile(pasted["step"], *pasted["args"], target="cpu")
        assert by_hand.footprint_bytes == each.compiled.footprint_bytes == before - each.saving_bytes
        assert by_hand.report.recomputed_flops == each.compiled.recomputed_flops > 0
        assert [leaf.donated for leaf in by_hand.report.arguments] == [True, True, True, False]


def test_logits_that_nobody_reads_are_compiled_away(tmp_path: Path) -> None:
    own = _names(_PROMPTS, tmp_path, "prompts")
    before = package.profile(own["step"], *own["args"], target="cpu").footprint_bytes
    (each,) = package.advise(own["step"], *own["args"], target="cpu")
    assert each.rule == "whole_prompt_logits"
    assert each.compiled is not None
    assert each.compiled.meaning in (Meaning.EQUAL, Meaning.CLOSE)
    pasted = _names(_PROMPTS, tmp_path, "prompts")
    exec(each.proposal.how_to, pasted)
    by_hand = package.profile(pasted["step"], *pasted["args"], target="cpu").footprint_bytes
    assert by_hand == each.compiled.footprint_bytes == before - each.saving_bytes
    logits_bytes = 4 * 4 * 200 * 2048
    assert each.saving_bytes > 0.9 * logits_bytes


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_an_attention_in_a_checkpointed_scan_is_compiled_with_a_kernel(tmp_path: Path) -> None:
    own = _names(_HALF_PRECISION, tmp_path, "half")
    before = package.profile(own["step"], *own["args"], target="h100-80gb")
    advice = _compiled(package.advise(own["step"], *own["args"], target="h100-80gb"))
    each = advice["flash_attention"]
    assert each.compiled is not None
    assert each.compiled.meaning in (Meaning.EQUAL, Meaning.CLOSE)
    assert "chunked_attention" not in advice
    assert (
        '# half.py:6: jax.nn.dot_product_attention(q, k, v, scale=0.25, is_causal=True, implementation="cudnn")'
        in each.proposal.how_to.splitlines()
    )
    pasted = _names(_HALF_PRECISION, tmp_path, "half")
    exec(each.proposal.how_to, pasted)
    by_hand = package.profile(pasted["step"], *pasted["args"], target="h100-80gb")
    assert by_hand.footprint_bytes == each.compiled.footprint_bytes == before.footprint_bytes - each.saving_bytes
    assert not any(buffer.is_of_attention for buffer in by_hand.report.buffers)
    assert any(buffer.is_of_attention for buffer in before.report.buffers)


@pytest.mark.parametrize("target", ["cpu", "h100-80gb"])
@pytest.mark.slow_cases
def test_a_cache_that_a_loop_copies_is_compiled_as_an_array_for_each_layer(tmp_path: Path, target: str) -> None:
    own = _names(_DECODE, tmp_path, "decode")
    before = package.profile(own["step"], *own["args"], target=target).footprint_bytes
    each = _compiled(package.advise(own["step"], *own["args"], target=target))["copied_cache"]
    assert each.compiled is not None
    assert each.compiled.meaning in (Meaning.EQUAL, Meaning.CLOSE)
    cache_bytes = 2 * 4 * 8 * 512 * 64 * 2
    assert each.saving_bytes > (0.9 if target != "cpu" else 0.3) * cache_bytes  # the CPU computes in float32
    pasted = _names(_DECODE, tmp_path, "decode")
    exec(each.proposal.how_to, pasted)
    params, _, *others = pasted["args"]
    by_hand = package.profile(pasted["step"], params, pasted["cache"], *others, target=target)
    assert by_hand.footprint_bytes == each.compiled.footprint_bytes == before - each.saving_bytes


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_sums_of_gradients_are_compiled_in_bfloat16(tmp_path: Path) -> None:
    own = _names(_ACCUMULATING, tmp_path, "accumulating")
    before = package.profile(own["step"], *own["args"], target="h100-80gb").footprint_bytes
    each = _compiled(package.advise(own["step"], *own["args"], target="h100-80gb"))["narrow_accumulators"]
    assert each.compiled is not None
    assert each.compiled.meaning is Meaning.DIFFERENT
    params_bytes = 3 * 2 * 256 * 1024 * 4
    assert each.saving_bytes > 0.2 * params_bytes  # of half at most: the peak moves
    pasted = _names(_ACCUMULATING, tmp_path, "accumulating")
    exec(each.proposal.how_to, pasted)
    by_hand = package.profile(pasted["step"], *pasted["args"], target="h100-80gb")
    assert by_hand.footprint_bytes == each.compiled.footprint_bytes == before - each.saving_bytes


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_arguments_that_all_devices_hold_are_compiled_divided(tmp_path: Path) -> None:
    own = _names(_REPLICATED, tmp_path, "replicated")
    args = [own[name] for name in ("params", "opt_state", "batch")]
    before = package.profile(own["step"], *args).footprint_bytes
    found = {each.proposal.what: each for each in package.advise(own["step"], *args) if each.is_compiled}
    divisions = [what for what in found if "over data=4" in what]
    assert {what.split()[1] for what in divisions} == {"optimizer", "params", "the"}
    for what in divisions:
        each = found[what]
        assert each.compiled is not None
        assert each.compiled.meaning is Meaning.EQUAL
        pasted = _names(_REPLICATED, tmp_path, "replicated")
        exec(each.proposal.how_to, pasted)
        by_hand = package.profile(pasted["step"], *(pasted[name] for name in ("params", "opt_state", "batch")))
        assert by_hand.footprint_bytes == each.compiled.footprint_bytes == before - each.saving_bytes, what
    params_bytes = 2 * 2 * 64 * 256 * 4
    assert found["Divide optimizer state over data=4"].saving_bytes > 0.7 * 2 * params_bytes


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_attention_for_a_device_without_the_kernel_is_in_blocks(tmp_path: Path) -> None:
    own = _names(_HALF_PRECISION, tmp_path, "half")
    advice = _compiled(package.advise(own["step"], *own["args"], target="cpu"))
    assert "chunked_attention" in advice
    assert "flash_attention" not in advice


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_compiled_advice_stands_in_every_later_report(memprof: Command) -> None:
    (memprof.folder / "train.py").write_text(_PLAIN)
    step = ("train.py:step_spec", "--target", "cpu", "--format", "json")
    advised = memprof("advise", *step)
    assert advised.returncode == 0, advised.stderr
    found = json.loads(advised.stdout)["advice"]
    assert [each["is_compiled"] for each in found] == sorted((each["is_compiled"] for each in found), reverse=True)
    assert found[0]["rule"] == "donate_state"  # it is free
    for each in found:
        assert each["is_compiled"] == (each["footprint_after_bytes"] is not None) == bool(each["meaning"])
    again = memprof("advise", *step)
    assert json.loads(again.stdout)["advice"] == found
    assert "recompute" not in again.stderr  # nothing is compiled again
    ran = memprof("run", *step, "-o", "step.memprof")
    assert json.loads(ran.stdout)["advice"] == found
    shown = memprof("advise", "step.memprof", "--format", "json")
    assert json.loads(shown.stdout)["advice"] == found


@pytest.mark.with_one_jax
def test_what_is_there_already_is_not_advised(tmp_path: Path) -> None:
    source = _PLAIN.replace("block(w, x, name", 'jax.checkpoint(lambda w, x: block(w, x, name="layer"))(w, x)  #')
    own = _names(source, tmp_path, "done")
    step = jax.jit(own["step"], donate_argnums=(0, 1))
    advice = package.advise(step, *own["args"], target="cpu")
    assert "donate_state" not in {each.rule for each in advice}
    assert not [each for each in advice if each.is_compiled and each.rule == "recompute_nothing"]


def test_a_step_that_differentiates_nothing_has_no_checkpoints() -> None:
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    assert not [each for each in package.advise(lambda x: jnp.sin(x) @ x, x, target="cpu") if each.is_compiled]
