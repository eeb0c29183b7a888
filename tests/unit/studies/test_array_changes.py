"""Changes of the arrays of a step: caches of layers, divided arguments, attentions in a kernel. None is compiled."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from report_builder import CPU, H100

from memprof.analysis.records.capture import ArgumentLeaf, Topology
from memprof.analysis.records.categories import Role
from memprof.analysis.records.rewrites import FusedAttention, NarrowSums, Unrolled
from memprof.sources.jax.checkpointing.attention_search import fused
from memprof.sources.jax.compile import traced_jaxpr
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.advice.advice import Advice, Proposal
from memprof.studies.changes import attention
from memprof.studies.changes.accumulators import narrow_accumulators
from memprof.studies.changes.attention import attention_kernels
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.layered_state import layered_states
from memprof.studies.changes.shardings import divided_arguments
from memprof.workloads.intents import Aim, Intent


def _struct(*shape: int, dtype: Any = jnp.float32, sharding: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _leaf(role: Role, shape: tuple[int, ...], position: int, *, mesh_axes: tuple[str, ...] = ()) -> ArgumentLeaf:
    return ArgumentLeaf(
        path=f"{role.value}[{position}]", role=role, shape=shape, dtype="float32", size_bytes=4 * prod(shape),
        donated=False, parameter_number=None, position=position, mesh_axes=mesh_axes,
    )  # fmt: skip


def _step(
    spec: StepSpec, *arguments: ArgumentLeaf, footprint_bytes: int = 0, num_loops: int = 1, **fields: Any
) -> Step:
    known: Any = SimpleNamespace(
        arguments=arguments,
        program=SimpleNamespace(loops=[SimpleNamespace(trip_count=1)] * num_loops),
        unpressed=SimpleNamespace(footprint_bytes=footprint_bytes),
        device_bytes=lambda leaf: leaf.size_bytes,
    )
    return Step(**{"spec": spec, "target": H100, "report": known, "advice": (), **fields})


def _with_sharding(fn: Any, num_arguments: int) -> Any:
    sharding = NamedSharding(jax.make_mesh((1,), ("data",)), PartitionSpec())
    return nnx.jit(fn, in_shardings=(sharding,) * num_arguments)


def decode(params: Any, cache: Any, x: Any) -> Any:
    """A loop over 4 layers, each of which writes a row of its cache of 8 rows."""

    def body(x: Any, given: Any) -> Any:
        w, keys = given
        keys = jax.lax.dynamic_update_slice(keys, (x @ w)[None], (0, 0))
        return x + keys.sum(0), keys

    x, keys = jax.lax.scan(body, x, (params, cache["k"]))
    return x, {"k": keys, "length": cache["length"] + 1}


_CACHE_BYTES = 4 * 8 * 16 * 4


class TestLayeredStates:
    def _step(self, fn: Any = decode, *, cache: Any = None, role: Role = Role.KV_CACHE, **fields: Any) -> Step:
        cache = {"k": _struct(4, 8, 16), "length": _struct(dtype=jnp.int32)} if cache is None else cache
        spec = StepSpec(fn, (_struct(4, 16, 16), cache, _struct(16)))
        leaves = [_leaf(role, tuple(each.shape), 1) for each in jax.tree.leaves(cache)]
        arguments = (_leaf(Role.PARAMS, (4, 16, 16), 0), *leaves, _leaf(Role.BATCH, (16,), 2))
        return _step(spec, *arguments, **fields)

    def test_each_layer_has_an_array_of_its_own(self) -> None:
        (change,) = layered_states(self._step())
        assert (change.rule, change.intent.aim, change.rewrite) == ("copied_cache", Aim.SPLIT_CACHE, Unrolled())
        assert change.code == (
            "import memprof\n\n# after the definition of decode\ndecode = memprof.apply(memprof.Unrolled())(decode)\n\n"
            "# once, before the first call; the step returns it in the same form\ncache = memprof.in_layers(cache, 4)\n"
        )
        # The cache and the 4 bytes of its length.
        assert change.evidence == f"a loop over 4 layers reads and writes {_CACHE_BYTES + 4:,} bytes of cache"
        assert [each.shape for each in jax.tree.leaves(change.spec.args[1])] == [(8, 16)] * 4 + [()]
        assert (change.spec.args[0].shape, change.spec.args[2].shape) == ((4, 16, 16), (16,))
        assert "scan" not in str(traced_jaxpr(change.spec, H100))

    def test_the_changed_step_computes_the_same_from_whole_arrays(self) -> None:
        """It is compared on the CPU with the arguments of the unchanged one."""
        (change,) = layered_states(self._step())
        assert change.on_cpu is not None
        assert change.on_cpu.args == self._step().spec.args
        ones = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype) / 8, change.on_cpu.args)
        before, after = decode(*ones), change.on_cpu.fn(*ones)
        assert jax.tree.structure(before) == jax.tree.structure(after)
        for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)

    def test_several_arguments_are_named_after_their_parameters(self) -> None:
        def both(params: Any, keys: Any, values: Any, x: Any) -> Any:
            def body(x: Any, given: Any) -> Any:
                w, key, value = given
                key = jax.lax.dynamic_update_slice(key, (x @ w)[None], (0, 0))
                value = jax.lax.dynamic_update_slice(value, x[None], (0, 0))
                return x + (key * value).sum(0), (key, value)

            x, (keys, values) = jax.lax.scan(body, x, (params, keys, values))
            return x, keys, values

        spec = StepSpec(both, (_struct(4, 16, 16), _struct(4, 8, 16), _struct(4, 8, 16), _struct(16)))
        caches = [_leaf(Role.KV_CACHE, (4, 8, 16), 1), _leaf(Role.OTHER_STATE, (4, 8, 16), 2)]
        (change,) = layered_states(_step(spec, _leaf(Role.PARAMS, (4, 16, 16), 0), *caches))
        assert change.code.endswith("keys = memprof.in_layers(keys, 4)\nvalues = memprof.in_layers(values, 4)\n")
        assert change.evidence.endswith(f"{2 * _CACHE_BYTES:,} bytes of keys, values")

    @pytest.mark.parametrize(("footprint_bytes", "is_found"), [(50, True), (51, False)])
    def test_two_percent_of_the_footprint_are_worth_a_compile(self, footprint_bytes: int, is_found: bool) -> None:
        made = self._step(cache={"k": _struct(4, 8, 16), "length": _struct(4, dtype=jnp.int32)}, footprint_bytes=1)
        assert not list(layered_states(made))  # an array for each layer beside those of the loop would be split, too
        held = self._step(footprint_bytes=footprint_bytes * (_CACHE_BYTES + 4))
        assert bool(list(layered_states(held))) is is_found

    def test_where_there_is_no_such_state_nothing_is_changed(self) -> None:
        assert not list(layered_states(self._step(num_loops=0)))
        assert not list(layered_states(self._step(role=Role.OTHER_STATE, is_built_in=True)))
        assert not list(layered_states(self._step(with_technique=lambda label: StepSpec(decode, ()))))
        assert not list(layered_states(self._step(role=Role.BATCH)))
        assert not list(layered_states(self._step(_with_sharding(decode, 3))))
        assert list(layered_states(self._step(role=Role.OTHER_STATE)))
        unread = lambda params, cache, x: (x, cache)  # noqa: E731
        assert not list(layered_states(self._step(unread)))


def _advice(rule: str, intent: Intent) -> Advice:
    proposal = Proposal(intent=intent, what=f"do {rule}", evidence="e", cost="c", without=lambda buffer: None)
    return Advice(rule=rule, proposal=proposal, bound_bytes=1)


class TestDividedArguments:
    _MESH = AbstractMesh((4, 2), ("data", "model"))

    def _whole(self, *shape: int, spec: PartitionSpec = PartitionSpec()) -> Any:  # noqa: B008
        return _struct(*shape, sharding=NamedSharding(self._MESH, spec))

    def _step(self, *advice: Advice, fn: Any = lambda params, state, x: x, **fields: Any) -> Step:
        """Weights of which one is divided already, one cannot be and one is divided along its first axis."""
        params = [
            self._whole(6, 8),
            self._whole(8, 4, spec=PartitionSpec("data")),
            self._whole(3, 5),
            self._whole(8, 12, spec=PartitionSpec("model", None)),
        ]
        state, batch = [self._whole(4)], self._whole(16, 4)
        arguments = [
            _leaf(Role.PARAMS, tuple(each.shape), 0, mesh_axes=("data",) if number == 1 else ())
            for number, each in enumerate(params)
        ]
        arguments += [_leaf(Role.OPTIMIZER_STATE, (4,), 1), _leaf(Role.BATCH, (16, 4), 2)]
        return _step(StepSpec(fn, (params, state, batch)), *arguments, advice=advice, **fields)

    def _specs(self, change: Change) -> list[Any]:
        return [each.sharding.spec for each in jax.tree.leaves(change.spec.args)]

    def test_the_first_whole_axis_that_can_be_cut_is_divided(self) -> None:
        intent = Intent(aim=Aim.DIVIDE_STATE, names=("params",), axes=("data",))
        (change,) = divided_arguments(self._step(_advice("replicated_state", intent)))
        assert (change.rule, change.intent, change.what) == ("replicated_state", intent, "do replicated_state")
        # 6 is no multiple of 4, nor is 3 or 5; the first axis of the last is that of the model.
        assert self._specs(change) == [
            PartitionSpec(None, "data"),
            PartitionSpec("data"),
            PartitionSpec(None, None),
            PartitionSpec("model", "data"),
            PartitionSpec(),
            PartitionSpec(),
        ]
        assert '"""`leaf` divided over data, along its first undivided axis with a suitable length."""' in change.code
        assert 'if spec[number] is None and length % 4 == 0:\n            spec[number] = "data"' in change.code
        assert "\nparams = jax.tree.map(divided, params)  # before" in change.code

    def test_a_batch_is_divided_over_all_axes_of_its_examples(self) -> None:
        intent = Intent(aim=Aim.DIVIDE_BATCH, axes=("model", "data"))
        (change,) = divided_arguments(self._step(_advice("undivided_batch", intent)))
        assert self._specs(change)[-1] == PartitionSpec(("model", "data"), None)
        assert self._specs(change)[0] == PartitionSpec()
        assert '"""`leaf` divided over data, along its examples."""' in change.code
        assert "in enumerate(leaf.shape[:1]):\n        if length % 4 == 0:" in change.code
        assert 'spec[number] = ("model", "data")' in change.code
        single = Intent(aim=Aim.DIVIDE_BATCH, axes=("data",))
        (change,) = divided_arguments(self._step(_advice("undivided_batch", single)))
        assert self._specs(change)[-1] == PartitionSpec("data", None)

    def test_each_advice_is_a_change_and_others_are_not(self) -> None:
        state = Intent(aim=Aim.DIVIDE_STATE, names=("optimizer_state",), axes=("data",))
        batch = Intent(aim=Aim.DIVIDE_BATCH, axes=("data",))
        step = self._step(
            _advice("donate_state", state), _advice("replicated_state", state), _advice("undivided_batch", batch)
        )
        first, second = divided_arguments(step)
        assert "opt_state = jax.tree.map(divided, opt_state)" in first.code
        assert "batch = jax.tree.map(divided, batch)" in second.code
        assert self._specs(first)[4] == PartitionSpec("data")

    def test_state_that_a_shard_map_returns_whole_stays_whole(self) -> None:
        advice = _advice("replicated_state", Intent(aim=Aim.DIVIDE_STATE, names=("params",), axes=("data",)))
        whole = PartitionSpec()
        manual = jax.shard_map(
            lambda state: jax.tree.map(jnp.sin, state), mesh=self._MESH, in_specs=whole, out_specs=whole
        )
        returned = jax.jit(lambda params, state, x: (manual(state), x))
        used = jax.jit(lambda params, state, x: jax.tree.map(jnp.cos, manual(state)))
        assert not list(divided_arguments(self._step(advice, fn=returned)))
        assert list(divided_arguments(self._step(advice, fn=used)))  # XLA may divide its own results

    def test_a_step_without_shardings_or_with_those_of_its_jit_is_not_changed(self) -> None:
        advice = _advice("replicated_state", Intent(aim=Aim.DIVIDE_STATE, names=("params",), axes=("data",)))
        assert not list(divided_arguments(self._step(advice, is_built_in=True)))
        assert not list(divided_arguments(self._step(advice, with_technique=lambda label: StepSpec(len, ()))))
        fn = _with_sharding(lambda params, state, x: x, 3)
        assert not list(divided_arguments(self._step(advice, fn=fn)))
        whole = self._step(advice)
        plain = replace(whole.spec, args=([_struct(6, 8)], [_struct(4)], _struct(16, 4)))
        assert not list(divided_arguments(replace(whole, spec=plain)))
        other = replace(whole.spec, args=([self._whole(6, 8)], *whole.spec.args[1:]))
        assert not list(divided_arguments(replace(whole, spec=other)))  # not the arguments of the report


_HEADS, _LENGTH = 4, 256
_PROBABILITY_BYTES = 2 * 8 * _HEADS * _LENGTH * _LENGTH  # those of one attention, in 16 bits


def attend(x: Any, w: Any, lowest: float, bias: Any = 0) -> Any:
    q, k, v = (each.reshape(8, _LENGTH, _HEADS, 16) for each in jnp.split(x @ w, 3, -1))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / 4
    scores = jnp.where(jnp.tril(jnp.ones((_LENGTH, _LENGTH), bool)), scores + bias, lowest)
    probabilities = jax.nn.softmax(scores.astype(jnp.float32)).astype(x.dtype)
    return x + jnp.einsum("bhts,bshd->bthd", probabilities, v).reshape(x.shape)


def attending(params: Any, x: Any, lowest: float = -1e9) -> Any:
    def loss(params: Any) -> Any:
        y = x
        for w in params:
            y = attend(y, w, lowest)
        return jnp.mean(y.astype(jnp.float32) ** 2)

    return jax.grad(loss)(params)


class TestAttentionKernels:
    @pytest.fixture(autouse=True)
    def _without_cudnn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Attentions are looked for with a kernel that JAX traces without cuDNN."""
        monkeypatch.setattr(
            attention, "fused", lambda fn, rewrite, found: fused(fn, replace(rewrite, implementation="xla"), found)
        )

    def _step(self, fn: Any = attending, *, dtype: Any = jnp.bfloat16, **fields: Any) -> Step:
        params = [_struct(64, 192, dtype=dtype)] * 2
        return _step(StepSpec(fn, (params, _struct(8, _LENGTH, 64, dtype=dtype))), **fields)

    def test_all_attentions_are_computed_by_the_kernel(self) -> None:
        (change,) = attention_kernels(self._step())
        assert (change.rule, change.rewrite) == ("flash_attention", FusedAttention())
        assert (change.intent.aim, change.intent.dtype) == (Aim.FUSE_ATTENTION, "bf16")
        line = attend.__code__.co_firstlineno + 2
        call = 'jax.nn.dot_product_attention(q, k, v, scale=0.25, is_causal=True, implementation="cudnn")'
        assert change.code == (
            f"import memprof\n\n# computes each of these attentions as\n# test_array_changes.py:{line}: {call}\n"
            "# after the definition of attending\nattending = memprof.apply(memprof.FusedAttention())(attending)"
        )
        assert change.evidence == (
            f"attentions found by data flow: 2; the probabilities of the largest take {_PROBABILITY_BYTES:,} bytes"
        )
        assert change.on_cpu is not None
        assert len(traced_jaxpr(change.on_cpu, CPU).out_avals) == 2  # cuDNN's kernel cannot be traced for it

    @pytest.mark.parametrize(("dtype", "is_rounded"), [(jnp.float32, True), (jnp.bfloat16, False)])
    def test_a_bias_that_the_kernel_rounds_is_told(self, dtype: Any, is_rounded: bool) -> None:
        def biased(params: Any, x: Any) -> Any:
            distances = jnp.abs(jnp.arange(_LENGTH)[:, None] - jnp.arange(_LENGTH))
            bias = (x.reshape(-1)[0] * distances).astype(dtype)
            return jax.grad(lambda params: jnp.mean(attend(x, params[0], -1e9, bias).astype(jnp.float32)))(params)

        (change,) = attention_kernels(self._step(biased))
        assert (
            change.cost.endswith(
                "; it takes the bias in bfloat16, not in float32: a large one, such as ALiBi's, is rounded"
            )
            == is_rounded
        )

    def test_half_precision_is_named(self) -> None:
        (change,) = attention_kernels(self._step(partial(attending, lowest=-1e4), dtype=jnp.float16))
        assert change.intent.dtype == "f16"

    @pytest.mark.parametrize("error", [NotImplementedError, RuntimeError])
    def test_an_attention_that_cudnn_cannot_compute_stays(
        self, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
    ) -> None:
        def refuse(spec: StepSpec, target: Any) -> None:
            raise error("cuDNN does not")

        monkeypatch.setattr(attention, "traced_jaxpr", refuse)
        assert not list(attention_kernels(self._step()))

    def test_probabilities_of_half_a_percent_are_worth_a_compile(self) -> None:
        footprint_bytes = 200 * 2 * _PROBABILITY_BYTES
        assert list(attention_kernels(self._step(footprint_bytes=footprint_bytes)))
        assert not list(attention_kernels(self._step(footprint_bytes=footprint_bytes + 1000)))
        two = replace(H100, topology=Topology(num_devices=2, axes={"data": 2}))
        assert list(attention_kernels(self._step(footprint_bytes=footprint_bytes // 2, target=two)))
        assert not list(attention_kernels(self._step(footprint_bytes=footprint_bytes // 2 + 1000, target=two)))

    @pytest.mark.parametrize(("capability", "is_found"), [("8.0", True), ("7.5", False), (None, False)])
    def test_the_kernel_needs_an_ampere(self, capability: str | None, is_found: bool) -> None:
        target = replace(H100, compute_capability=capability)
        assert bool(list(attention_kernels(self._step(target=target)))) is is_found

    def test_steps_that_cannot_be_changed_are_not(self) -> None:
        assert not list(attention_kernels(self._step(target=CPU)))
        assert not list(attention_kernels(self._step(is_built_in=True)))
        assert not list(attention_kernels(self._step(with_technique=lambda label: StepSpec(len, ()))))
        assert not list(attention_kernels(self._step(lambda params, x: x.sum())))
        assert not list(attention_kernels(self._step(_with_sharding(attending, 2))))


def test_accumulators_are_narrow_if_their_rule_speaks() -> None:
    advice = _advice("narrow_accumulators", Intent(aim=Aim.CAST_ACCUMULATORS))
    step = _step(StepSpec(attending, ()), advice=(_advice("donate_state", Intent(aim=Aim.DONATE)), advice))
    (change,) = narrow_accumulators(step)
    assert (change.rule, change.what, change.rewrite) == ("narrow_accumulators", "do narrow_accumulators", NarrowSums())
    assert change.code == (
        "import memprof\n\n# after the definition of attending\n"
        "attending = memprof.apply(memprof.NarrowSums())(attending)"
    )
    assert not change.keeps_numbers
    assert not list(narrow_accumulators(replace(step, advice=step.advice[:1])))
    assert not list(narrow_accumulators(replace(step, is_built_in=True)))
    assert not list(narrow_accumulators(replace(step, with_technique=lambda label: step.spec)))
    assert not list(narrow_accumulators(replace(step, spec=StepSpec(_with_sharding(attending, 2), ()))))
