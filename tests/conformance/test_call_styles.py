"""The program that memprof looks at is the one that the framework's own jit makes of the user's step.

Every call style, container and framework that docs/your-own-step.md names: the totals of memprof's compile are those of
the framework's own jit, lowered and compiled by plain JAX on the same arguments for the CPU.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import flax.struct
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from flax.training.train_state import TrainState
from simple_kernels import SIMPLE_KERNELS

from memprof.analysis.hlo.hlo_proto import HloProto
from memprof.sources.jax.compile import compile_step
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.tracing.step import StepSpec
from memprof.sources.jax.xla.plan import with_plan

TX = optax.sgd(1e-3, momentum=0.9)
X = jnp.ones((4, 8))
W = {"up": jnp.ones((8, 16)), "down": jnp.ones((16, 1))}
STATE = TX.init(W)
KEY = jax.random.key(0)
# What LLVM does comes after the memory is assigned, and takes most of the time.
QUICK = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": "True", **SIMPLE_KERNELS}
# What is in the arrays is no part of a program, and random numbers take compiles: in every process that collects tests.
ZEROS = nnx.initializers.zeros_init()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """One way of calling: what memprof is given, and what plain JAX makes of it."""

    spec: StepSpec
    lower: Callable[[], Any]


class Pair(NamedTuple):
    model: Any
    optimizer: Any


@flax.struct.dataclass
class Record:
    model: Any
    optimizer: Any


@functools.partial(jax.tree_util.register_dataclass, data_fields=["model", "optimizer"], meta_fields=["name"])
@dataclasses.dataclass
class Registered:
    model: Any
    optimizer: Any
    name: str = "state"


def step(w: Any, state: Any, x: Any) -> Any:
    grads = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w["up"]) @ w["down"]))(w)
    updates, state = TX.update(grads, state)
    return optax.apply_updates(w, updates), state


def scaled(w: Any, state: Any, x: Any, scale: Any = 1.0, *, flag: bool = False, **more: Any) -> Any:
    x = x * scale if flag else x
    return step(w, state, sum(more.values(), x))


class PlainTrainer:
    def __init__(self) -> None:
        self.scale = 2.0

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
    def jitted(self, w: Any, state: Any, x: Any) -> Any:
        return step(w, state, x * self.scale)

    def plain(self, w: Any, state: Any, x: Any) -> Any:
        return step(w, state, x * self.scale)

    @functools.partial(jax.jit, static_argnames=("self", "flag"), donate_argnames="w")
    def named(self, w: Any, state: Any, x: Any, flag: bool) -> Any:
        return scaled(w, state, x, flag=flag)


@jax.tree_util.register_pytree_node_class
class LossScale:
    """Looks at the dtypes of its leaves, as `jmp.DynamicLossScale` does."""

    def __init__(self, value: Any) -> None:
        if type(value) is not object:
            assert jax.eval_shape(lambda: value).dtype == jnp.float32
        self.value = value

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> LossScale:
        return cls(*children)


def with_loss_scale(scale: Any, x: Any) -> Any:
    return LossScale(2 * scale.value), scale.value * x


def plain_styles() -> dict[str, Style]:
    jitted = jax.jit(step, donate_argnums=(0, 1))
    trainer = PlainTrainer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it still works, and people use it
        for_cpu = jax.jit(step, backend="cpu", donate_argnums=0)
    jit_scaled = jax.jit(scaled, static_argnames="flag", donate_argnames=("w", "x"))
    args = (W, STATE, X)
    kwargs = {"w": W, "state": STATE, "x": X}
    shapes = jax.eval_shape(lambda *args: args, *args)
    return {
        "a function": Style(spec=StepSpec(step, args), lower=lambda: jax.jit(step).lower(*args)),
        "a function, donated": Style(
            spec=StepSpec(step, args, donate_argnums=(0, 1)), lower=lambda: jitted.lower(*args)
        ),
        "jitted": Style(spec=StepSpec(jitted, args), lower=lambda: jitted.lower(*args)),
        "jitted, on shapes": Style(spec=StepSpec(jitted, shapes), lower=lambda: jitted.lower(*args)),
        "jitted, on arrays of NumPy": Style(
            spec=StepSpec(jitted, jax.tree.map(np.asarray, args)), lower=lambda: jitted.lower(*args)
        ),
        "keywords": Style(spec=StepSpec(step, (), kwargs=kwargs), lower=lambda: jax.jit(step).lower(**kwargs)),
        "jitted, with static and donated keywords": Style(
            spec=StepSpec(jit_scaled, (W, STATE), kwargs={"x": X, "scale": 2.0, "flag": True, "b": X, "a": X}),
            lower=lambda: jit_scaled.lower(W, STATE, x=X, scale=2.0, flag=True, b=X, a=X),
        ),
        "a function with a static argument": Style(
            spec=StepSpec(scaled, (*args, 2.0), static_argnums=(3,), donate_argnums=(0,)),
            lower=lambda: jax.jit(scaled, static_argnums=3, donate_argnums=0).lower(*args, 2.0),
        ),
        "a class that looks at its leaves": Style(
            spec=StepSpec(jax.jit(with_loss_scale, donate_argnums=0), (LossScale(jnp.ones(1000)), X[0, 0])),
            lower=lambda: jax.jit(lambda scale, x: (2 * scale, scale * x), donate_argnums=0).lower(
                jnp.ones(1000), X[0, 0]
            ),
        ),
        "a partial function": Style(
            spec=StepSpec(functools.partial(scaled, flag=True, scale=3.0), args),
            lower=lambda: jax.jit(functools.partial(scaled, flag=True, scale=3.0)).lower(*args),
        ),
        "a partial of a jitted function": Style(
            spec=StepSpec(functools.partial(jitted, W), (STATE,), kwargs={"x": X}),
            lower=lambda: jitted.lower(W, STATE, x=X),
        ),
        "a bound method": Style(
            spec=StepSpec(trainer.plain, args, donate_argnums=(0, 1)),
            lower=lambda: jax.jit(trainer.plain, donate_argnums=(0, 1)).lower(*args),
        ),
        "a jitted bound method": Style(
            spec=StepSpec(trainer.jitted, args), lower=lambda: PlainTrainer.jitted.lower(trainer, *args)
        ),
        "a jitted bound method with names": Style(
            spec=StepSpec(trainer.named, args, kwargs={"flag": True}),
            lower=lambda: PlainTrainer.named.lower(trainer, *args, flag=True),
        ),
        "unused arguments": Style(
            spec=StepSpec(lambda w, state, x, unused: step(w, state, x), (*args, X)),
            lower=lambda: jax.jit(lambda w, state, x, unused: step(w, state, x)).lower(*args, X),
        ),
        "unused arguments, kept": Style(
            spec=StepSpec(jax.jit(lambda w, unused: w, keep_unused=True), (W, X)),
            lower=lambda: jax.jit(lambda w, unused: w, keep_unused=True).lower(W, X),
        ),
        "for another backend": Style(spec=StepSpec(for_cpu, args), lower=lambda: for_cpu.lower(*args)),
        "random keys and numbers": Style(
            spec=StepSpec(lambda k, x, n: jax.random.normal(k, x.shape) * n, (KEY, X, 3)),
            lower=lambda: jax.jit(lambda k, x, n: jax.random.normal(k, x.shape) * n).lower(KEY, X, 3),
        ),
        "one array in two places": Style(
            spec=StepSpec(lambda a, b: (a + b["x"], a * b["x"]), (X, {"x": X}), donate_argnums=(0,)),
            lower=lambda: jax.jit(lambda a, b: (a + b["x"], a * b["x"]), donate_argnums=0).lower(X, {"x": X}),
        ),
    }


class LinenModel(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(1)(nn.BatchNorm(use_running_average=False)(nn.Dense(16)(x)))


def linen_styles() -> dict[str, Style]:
    model = LinenModel()
    variables = jax.eval_shape(lambda: model.init(KEY, X))
    state = jax.eval_shape(lambda v: TrainState.create(apply_fn=model.apply, params=v["params"], tx=TX), variables)
    statistics = variables["batch_stats"]

    def train(state: TrainState, statistics: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            out, new = state.apply_fn({"params": params, "batch_stats": statistics}, x, mutable=["batch_stats"])
            return jnp.mean(out), new

        grads, new = jax.grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads), new

    jitted = jax.jit(train, donate_argnames=("state", "statistics"))
    transformed = hk.transform(lambda x: hk.Linear(1)(jnp.tanh(hk.Linear(16)(x))))
    weights = jax.eval_shape(transformed.init, KEY, X)

    def haiku(weights: Any, x: Any) -> Any:
        return jax.grad(lambda w: jnp.mean(transformed.apply(w, None, x)))(weights)

    return {
        "Flax linen": Style(
            spec=StepSpec(train, (state, statistics, X), donate_argnums=(0,)),
            lower=lambda: jax.jit(train, donate_argnums=0).lower(state, statistics, X),
        ),
        "Flax linen, jitted": Style(
            spec=StepSpec(jitted, (state,), kwargs={"statistics": statistics, "x": X}),
            lower=lambda: jitted.lower(state, statistics=statistics, x=X),
        ),
        "Haiku": Style(spec=StepSpec(haiku, (weights, X)), lower=lambda: jax.jit(haiku).lower(weights, X)),
    }


class NnxModel(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(8, 16, kernel_init=ZEROS, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.down = nnx.Linear(16, 1, kernel_init=ZEROS, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.down(self.dropout(jnp.tanh(self.norm(self.up(x)))))

    @nnx.jit
    def jitted(self, x: Any) -> Any:
        return self(x)

    def train_on(self, optimizer: Any, x: Any) -> Any:
        return nnx_step(self, optimizer, x)


class TiedModel(nnx.Module):
    """Two parts with one kernel."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(8, 8, kernel_init=ZEROS, rngs=rngs)
        self.second = nnx.Linear(8, 8, kernel_init=ZEROS, rngs=rngs)
        self.second.kernel = self.first.kernel

    def __call__(self, x: Any) -> Any:
        return self.second(jnp.tanh(self.first(x)))


def nnx_step(model: Any, optimizer: Any, x: Any) -> Any:
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean(model(x)))(model)
    optimizer.update(model, grads)
    return loss


def nnx_styles() -> dict[str, Style]:
    model = NnxModel(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, TX, wrt=nnx.Param)
    tied = TiedModel(nnx.Rngs(0))
    tied_optimizer = nnx.Optimizer(tied, TX, wrt=nnx.Param)
    metric = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
    graphdef, state = nnx.split((model, optimizer))
    jitted = nnx.jit(nnx_step, donate_argnums=(0, 1))

    def of_pair(pair: Any, x: Any) -> Any:
        return nnx_step(pair[0], pair[1], x)

    def of_dict(both: Any, x: Any) -> Any:
        return nnx_step(both["model"], both["optimizer"][0], x)

    def of_record(record: Any, x: Any) -> Any:
        return nnx_step(record.model, record.optimizer, x)

    def of_metric(model: Any, optimizer: Any, metric: Any, x: Any) -> None:
        metric.update(loss=nnx_step(model, optimizer, x))

    def merged(graphdef: Any, state: Any, x: Any) -> Any:
        model, optimizer = nnx.merge(graphdef, state)
        loss = nnx_step(model, optimizer, x)
        return nnx.state((model, optimizer)), loss

    def with_mode(model: Any, optimizer: Any, x: Any, mode: str) -> Any:
        return nnx_step(model, optimizer, x if mode == "train" else -x)

    both = {"model": model, "optimizer": [optimizer]}
    jit_merged = jax.jit(merged, donate_argnums=1)
    styles = {
        "NNX": (nnx_step, nnx.jit(nnx_step), (model, optimizer, X), {}),
        "NNX in a tuple": (of_pair, nnx.jit(of_pair), ((model, optimizer), X), {}),
        "NNX in a list": (of_pair, nnx.jit(of_pair), ([model, optimizer], X), {}),
        "NNX in a named tuple": (of_record, nnx.jit(of_record), (Pair(model, optimizer), X), {}),
        "NNX in a dict and a list": (of_dict, nnx.jit(of_dict), (both, X), {}),
        "NNX in a record of Flax": (of_record, nnx.jit(of_record), (Record(model, optimizer), X), {}),
        "NNX in a registered dataclass": (of_record, nnx.jit(of_record), (Registered(model, optimizer), X), {}),
        "NNX as keywords": (nnx_step, nnx.jit(nnx_step), (model,), {"optimizer": optimizer, "x": X}),
        "NNX with metrics": (of_metric, nnx.jit(of_metric), (model, optimizer, metric, X), {}),
        "NNX with tied parameters": (nnx_step, nnx.jit(nnx_step), (tied, tied_optimizer, X), {}),
        "NNX with a text": (
            with_mode, nnx.jit(with_mode, static_argnames="mode"), (model, optimizer, X), {"mode": "train"}
        ),
    }  # fmt: skip
    found = {
        name: Style(spec=StepSpec(fn, args, kwargs=kwargs), lower=functools.partial(jit.lower, *args, **kwargs))
        for name, (fn, jit, args, kwargs) in styles.items()
    }
    jitted_ones = {
        "NNX, jitted": (jitted, (model, optimizer, X), {}),
        "NNX in a dict, jitted": (nnx.jit(of_dict, donate_argnums=0), (both, X), {}),
        "NNX as keywords, jitted": (
            nnx.jit(nnx_step, donate_argnames="optimizer"), (model,), {"optimizer": optimizer, "x": X}
        ),
        "NNX, split, jitted": (jit_merged, (graphdef, state, X), {}),
        "NNX without graph updates, jitted": (nnx.jit(nnx_step, graph=False), (model, optimizer, X), {}),
    }  # fmt: skip
    found |= {
        name: Style(spec=StepSpec(jit, args, kwargs=kwargs), lower=functools.partial(jit.lower, *args, **kwargs))
        for name, (jit, args, kwargs) in jitted_ones.items()
    }
    abstract = nnx.eval_shape(lambda: NnxModel(nnx.Rngs(0)))
    return found | {
        "NNX, split, donated": Style(
            spec=StepSpec(merged, (graphdef, state, X), donate_argnums=(1,)),
            lower=lambda: jit_merged.lower(graphdef, state, X),
        ),
        "NNX, donated": Style(
            spec=StepSpec(nnx_step, (model, optimizer, X), donate_argnums=(0, 1)),
            lower=lambda: jitted.lower(model, optimizer, X),
        ),
        "NNX, a jitted method": Style(spec=StepSpec(model.jitted, (X,)), lower=lambda: NnxModel.jitted.lower(model, X)),
        "NNX, a method": Style(
            spec=StepSpec(model.train_on, (optimizer, X), donate_argnums=(0,)),
            lower=lambda: nnx.jit(NnxModel.train_on, donate_argnums=1).lower(model, optimizer, X),
        ),
        "NNX, on shapes": Style(
            spec=StepSpec(nnx_step, (abstract, nnx.eval_shape(lambda: optimizer), X)),
            lower=lambda: nnx.jit(nnx_step).lower(model, optimizer, X),
        ),
    }


class EqxTrainer(eqx.Module):
    model: eqx.nn.MLP
    state: Any

    @eqx.filter_jit
    def jitted(self, x: Any) -> Any:
        return eqx_step(self.model, self.state, x)

    def plain(self, x: Any) -> Any:
        return eqx_step(self.model, self.state, x)


def eqx_step(model: Any, state: Any, x: Any) -> Any:
    grads = eqx.filter_grad(lambda model: jnp.mean(jax.vmap(model)(x)))(model)
    updates, state = TX.update(grads, state)
    return eqx.apply_updates(model, updates), state


def eqx_styles() -> dict[str, Style]:
    model = jax.tree.map(
        lambda leaf: jnp.asarray(np.zeros(leaf.shape, leaf.dtype)) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf,
        eqx.filter_eval_shape(eqx.nn.MLP, 8, 1, 16, 2, key=KEY),
    )
    state = TX.init(eqx.filter(model, eqx.is_inexact_array))
    trainer = EqxTrainer(model, state)
    args = (model, state, X)

    def reordered(x: Any, model: Any, state: Any) -> Any:
        return eqx_step(model, state, x)

    def of_pair(pair: Any, x: Any, scale: float, name: str) -> Any:
        return eqx_step(pair["model"], pair["rest"][0], x * scale if name == "train" else x)

    pair = {"model": model, "rest": (state,)}
    by_donation = {
        f"Equinox, filter_jit(donate={donate})": Style(
            spec=StepSpec(eqx.filter_jit(eqx_step, donate=donate), args),
            lower=functools.partial(eqx.filter_jit(eqx_step, donate=donate).lower, *args),
        )
        for donate in ("none", "all", "all-except-first")
    }
    donating = eqx.filter_jit(eqx_step, donate="all")
    shapes = eqx.filter_eval_shape(lambda: args)
    return by_donation | {
        "Equinox": Style(spec=StepSpec(eqx_step, args), lower=lambda: eqx.filter_jit(eqx_step).lower(*args)),
        "Equinox, model and state donated": Style(
            spec=StepSpec(eqx_step, args, donate_argnums=(0, 1)),
            lower=lambda: eqx.filter_jit(reordered, donate="all-except-first").lower(X, model, state),
        ),
        "Equinox, keywords donated": Style(
            spec=StepSpec(donating, (model,), kwargs={"state": state, "x": X}),
            lower=lambda: donating.lower(model, state=state, x=X),
        ),
        "Equinox, on shapes": Style(spec=StepSpec(donating, shapes), lower=lambda: donating.lower(*args)),
        "Equinox in a dict, with static values": Style(
            spec=StepSpec(of_pair, (pair, X), kwargs={"scale": 2.0, "name": "train"}),
            lower=lambda: eqx.filter_jit(of_pair).lower(pair, X, 2.0, "train"),
        ),
        "Equinox, a jitted method": Style(
            spec=StepSpec(trainer.jitted, (X,)), lower=lambda: EqxTrainer.jitted.lower(trainer, X)
        ),
        "Equinox, a method": Style(
            spec=StepSpec(trainer.plain, (X,)), lower=lambda: eqx.filter_jit(EqxTrainer.plain).lower(trainer, X)
        ),
        "Equinox, a module": Style(spec=StepSpec(model, (X[0],)), lower=lambda: eqx.filter_jit(model).lower(X[0])),
        "Equinox, a jitted module": Style(
            spec=StepSpec(eqx.filter_jit(model), (X[0],)), lower=lambda: eqx.filter_jit(model).lower(X[0])
        ),
        "Equinox, jitted around a jitted gradient": Style(
            spec=StepSpec(eqx.filter_jit(eqx.filter_value_and_grad(lambda m, x: jnp.mean(jax.vmap(m)(x)))), (model, X)),
            lower=lambda: eqx.filter_jit(eqx.filter_value_and_grad(lambda m, x: jnp.mean(jax.vmap(m)(x)))).lower(
                model, X
            ),
        ),
    }


STYLES = plain_styles() | linen_styles() | nnx_styles() | eqx_styles()


def test_there_are_enough_styles() -> None:
    assert len(STYLES) >= 40


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.with_each_jax
@pytest.mark.parametrize("name", STYLES)
def test_the_program_is_that_of_the_frameworks_own_jit(name: str, tmp_path: Path) -> None:
    style = STYLES[name]
    lowered = style.lower()
    dump = {"xla_dump_to": str(tmp_path / "plain"), "xla_dump_hlo_as_proto": True}
    totals: Any = getattr(lowered, "lowered", lowered).compile(compiler_options=QUICK | dump).memory_analysis()
    spec = dataclasses.replace(style.spec, compiler_options=QUICK)
    compiled = compile_step(spec, resolve("cpu"), dump_folder=tmp_path / "ours", progress=lambda stage: None)
    capture = with_plan(compiled.planned).capture
    ours = capture.compiler
    assert (ours.argument_bytes, ours.output_bytes, ours.alias_bytes, ours.temp_bytes) == (
        totals.argument_size_in_bytes,
        totals.output_size_in_bytes,
        totals.alias_size_in_bytes,
        totals.temp_size_in_bytes,
    )
    (plain,) = (tmp_path / "plain").glob("*after_optimizations.hlo.pb")
    assert _allocations(capture.hlo_proto) == _allocations(plain.read_bytes())
    leaves = capture.arguments
    assert sum(leaf.size_bytes for leaf in leaves if leaf.parameter_number is not None) == totals.argument_size_in_bytes
    assert not any(leaf.path.startswith("args") for leaf in leaves)  # each is a leaf of the user's own


def _allocations(hlo_proto: bytes) -> list[tuple[int, bool, bool, bool]]:
    """What the footprint is the sum of: every allocation, by size, with what it is for."""
    program = HloProto.FromString(hlo_proto)
    return sorted(
        (each.size, each.is_entry_computation_parameter, each.maybe_live_out, each.is_constant)
        for each in program.buffer_assignment.buffer_allocations
    )
