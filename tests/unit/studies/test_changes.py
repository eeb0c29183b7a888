"""Changes to a step: the code that is printed, the small instance that is run, and what two runs are said to mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from report_builder import H100, buffer, report

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.report import Report
from memprof.analysis.records.rewrites import Donation, InChunks, InMinibatches
from memprof.analysis.records.roofline import Roofline
from memprof.errors import MemprofError
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.advice.advice import Advice, Meaning, Proposal
from memprof.studies.advice.compiled import _advice
from memprof.studies.changes import same_meaning
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.donation import donating_code, donations
from memprof.studies.changes.optimizer_state import _optimizer, narrow_optimizer_states
from memprof.studies.changes.own_jit import applied_code
from memprof.studies.changes.same_meaning import MeaningCheck, compared, results_of, small_instance
from memprof.studies.changes.techniques import techniques
from memprof.workloads.intents import Aim, Intent

_F32 = jax.ShapeDtypeStruct((4,), jnp.float32)


def plain(state: Any, x: Any, mode: Any = None) -> Any:
    del mode
    return state + x, x.sum()


def _leaf(path: str, role: Role, shape: tuple[int, ...], dtype: str = "float32", position: int = 0) -> ArgumentLeaf:
    size_bytes = prod(shape) * 4
    return ArgumentLeaf(
        path=path, role=role, shape=shape, dtype=dtype, size_bytes=size_bytes, donated=False, parameter_number=None,
        position=position,
    )  # fmt: skip


def _step(spec: StepSpec, *, flops: int = 0, arguments: tuple[ArgumentLeaf, ...] = (), **fields: Any) -> Step:
    known: Any = SimpleNamespace(flops=flops, arguments=arguments)
    return Step(spec=spec, target=H100, report=known, **{"advice": (), **fields})


def _proposed(rule: str, intent: Intent, **fields: Any) -> Advice:
    proposal = Proposal(intent=intent, what="w", evidence="e", cost="c", without=lambda buffer: None, **fields)
    return Advice(rule=rule, proposal=proposal, bound_bytes=1)


# `filter_jit` would donate the batch too, and the next call could not use it.
_REGROUPED = """\
import equinox as eqx


def donating(call):
    def plain(kept, state):
        (x,) = kept
        return call(state, x)

    return eqx.filter_jit(plain, donate="all-except-first")


# after the definition of plain
plain = donating(plain)  # call it as plain((x,), state)"""


def _with_place(line: str) -> str:
    """The line for a function of this module, below the comment on where it goes: `plain` itself has no jit."""
    place = "the step is made, under the name that it has there" if "__wrapped__" in line else "the definition of plain"
    return line.replace("\n\nplain = ", f"\n\n# after {place}\nplain = ")


class TestDonation:
    @pytest.mark.parametrize(
        ("make", "positions", "line"),
        [
            (lambda: plain, (0,), "import jax\n\nplain = jax.jit(plain, donate_argnums=(0,))"),
            (lambda: jax.jit(plain), (0,), "import jax\n\nplain = jax.jit(plain.__wrapped__, donate_argnums=(0,))"),
            (
                lambda: jax.jit(plain, donate_argnums=1, static_argnums=2),
                (0,),
                "import jax\n\nplain = jax.jit(plain.__wrapped__, donate_argnums=(0, 1), static_argnums=(2,),"
                " static_argnames=('mode',))",
            ),
            (
                lambda: jax.jit(plain, static_argnames="mode"),
                (1, 0),
                "import jax\n\nplain = jax.jit(plain.__wrapped__, donate_argnums=(0, 1), static_argnums=(2,),"
                " static_argnames=('mode',))",
            ),
            (
                lambda: nnx.jit(plain),
                (0,),
                "from flax import nnx\n\nplain = nnx.jit(plain.__wrapped__, donate_argnums=(0,))",
            ),
            (
                lambda: eqx.filter_jit(plain),
                (0, 1),
                'import equinox as eqx\n\nplain = eqx.filter_jit(plain.__wrapped__, donate="all")',
            ),
            (
                lambda: eqx.filter_jit(plain),
                (1,),
                'import equinox as eqx\n\nplain = eqx.filter_jit(plain.__wrapped__, donate="all-except-first")',
            ),
            (
                lambda: eqx.filter_jit(plain, donate="all-except-first"),
                (0,),
                'import equinox as eqx\n\nplain = eqx.filter_jit(plain.__wrapped__, donate="all")',
            ),
            (lambda: lambda state, x: state, (0,), "import jax\n\nstep = jax.jit(step, donate_argnums=(0,))"),
        ],
    )
    def test_the_line_jits_the_step_as_before(
        self, make: Callable[[], Any], positions: tuple[int, ...], line: str
    ) -> None:
        spec = StepSpec(make(), (_F32, _F32))
        assert donating_code(spec, Intent(aim=Aim.DONATE, positions=positions)) == _with_place(line)

    def test_a_step_made_of_a_function_is_not_the_function(self) -> None:
        """The name of both is that of the function."""
        mesh, whole = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,)), PartitionSpec()
        of_shards = jax.shard_map(partial(plain, mode=1), mesh=mesh, in_specs=(whole, whole), out_specs=whole)
        for step, place in [
            (plain, "the definition of plain"),
            (jax.jit(plain), "the definition of plain"),  # of which the jit is made later
            (jax.jit(of_shards), "the step is made, under the name that it has there"),
        ]:
            code = applied_code(StepSpec(step, (_F32, _F32)), "memprof.apply(memprof.NarrowSums())")
            assert code is not None
            assert f"# after {place}\nplain = memprof.apply(memprof.NarrowSums())(plain)" in code

    def test_code_for_a_step_that_a_function_makes_says_where_it_goes(self) -> None:
        def made(state: Any) -> Any:
            return state

        place = "test_code_for_a_step_that_a_function_makes_says_where_it_goes"
        assert donating_code(StepSpec(jax.jit(made), (_F32,)), Intent(aim=Aim.DONATE, positions=(0,))) == (
            f"import jax\n\n# after {place} has made the step, under the name that it has there\n"
            "made = jax.jit(made.__wrapped__, donate_argnums=(0,))"
        )

    @pytest.mark.parametrize(
        ("argument", "line"),
        [
            (
                lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0)),
                "from flax import nnx\n\nplain = nnx.jit(plain, donate_argnums=(0,))",
            ),
            (
                lambda: eqx.nn.Linear(2, 2, key=jax.random.key(0)),
                _REGROUPED,
            ),
        ],
    )  # fmt: skip
    def test_a_step_without_jit_has_that_of_its_arguments(self, argument: Callable[[], Any], line: str) -> None:
        assert donating_code(
            StepSpec(plain, (argument(), _F32)), Intent(aim=Aim.DONATE, positions=(0,))
        ) == _with_place(line)

    def test_what_equinox_does_not_donate_can_be_used_again(self) -> None:
        def decode(model: Any, cache: jax.Array, *rest: Any, kept: jax.Array, mode: str) -> Any:
            return model.weight @ cache + rest[0] + kept, cache + 1.0

        model, x = eqx.nn.Linear(2, 2, key=jax.random.key(0)), jnp.ones((2, 2))
        spec = StepSpec(eqx.filter_jit(decode), (model, x, x), kwargs={"kept": x, "mode": "sample"})
        (change,) = donations(_step(spec, advice=(_proposed("donate_state", Intent(aim=Aim.DONATE, positions=(1,))),)))
        (others, cache), changed = change.spec.args, change.spec.fn
        assert "call it as decode((model, arg2, kept, mode), cache)" in change.code
        for _ in range(2):
            cache = changed(others, cache + 0.0)[1]
        assert (cache == 3.0).all()
        assert (others[1] == 1.0).all()

    def test_shardings_are_not_repeated(self) -> None:
        mesh = jax.make_mesh((1,), ("data",))
        jitted = jax.jit(plain, in_shardings=NamedSharding(mesh, PartitionSpec()))
        intent = Intent(aim=Aim.DONATE, positions=(0,))
        assert (
            donating_code(StepSpec(jitted, (_F32, _F32)), intent) == "donate_argnums = (0,)  # for the jax.jit of plain"
        )

    def test_the_changed_step_donates_also_what_it_did_before(self) -> None:
        advice = (
            _proposed("donate_state", Intent(aim=Aim.DONATE, positions=(0,))),
            _proposed("other", Intent(aim=Aim.DONATE)),
        )
        spec = StepSpec(plain, (_F32, object()), donate_argnums=(1,))
        (change,) = donations(_step(spec, advice=advice))
        assert (change.rule, change.spec.donate_argnums, change.keeps_numbers) == ("donate_state", (0, 1), True)
        (jitted,) = donations(_step(StepSpec(jax.jit(plain), (_F32, _F32)), advice=advice))
        assert jitted.spec.fn is not plain
        assert jitted.spec.donate_argnums == ()
        assert not list(donations(_step(spec, advice=advice, with_technique=lambda label: spec)))


class TestSmallInstance:
    def test_a_small_step_is_run_as_it_is(self) -> None:
        spec = StepSpec(plain, (_F32, _F32))
        assert small_instance(_step(spec, flops=10**11)) is spec
        assert small_instance(_step(spec, flops=10**11 + 1)) is None  # and nothing of it is a batch
        limit = StepSpec(plain, (jax.ShapeDtypeStruct((2**27,), jnp.float32), 3))  # 512 MiB
        assert small_instance(_step(limit)) is limit
        assert small_instance(_step(StepSpec(plain, (jax.ShapeDtypeStruct((2**27 + 1,), jnp.float32),)))) is None

    @pytest.mark.parametrize(("num_steps", "runs"), [(100, True), (10**4, False)])
    def test_a_step_without_products_can_be_too_large(self, num_steps: int, runs: bool) -> None:
        """The gradient keeps a field of 1 MB for each step: 100 MB, or 10 GB."""

        def simulate(field: Any) -> Any:
            def following(field: Any, _: None) -> Any:
                return jnp.sin(field), None

            return jax.grad(lambda field: jax.lax.scan(following, field, length=num_steps)[0].sum())(field)

        spec = StepSpec(simulate, (jax.ShapeDtypeStruct((250_000,), jnp.float32),))
        assert (small_instance(_step(spec)) is spec) == runs

    def _shapes(self, fn: Any, *args: Any, roles: Sequence[Role], flops: int = 10**12, **kwargs: Any) -> Any:
        """Return the shapes of the small instance of a large step, or None."""
        leaves = jax.tree.leaves((args, kwargs))
        pairs = zip(leaves, roles, strict=True)
        arguments = tuple(_leaf("x", role, leaf.shape, str(leaf.dtype)) for leaf, role in pairs)
        small = small_instance(_step(StepSpec(fn, args, kwargs=kwargs), flops=flops, arguments=arguments))
        return None if small is None else [leaf.shape for leaf in jax.tree.leaves((small.args, dict(small.kwargs)))]

    def test_of_a_large_one_two_examples(self) -> None:
        """10,000 examples with 2 x 8 x 8 operations each."""
        w, x, y = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 8), (10_000, 8), (10_000,)))

        def step(w: Any, batch: Any) -> Any:
            return (batch["x"] @ w).sum(1) - batch["y"]

        roles = (Role.PARAMS, Role.BATCH, Role.BATCH)
        assert self._shapes(step, w, {"x": x, "y": y}, roles=roles) == [(8, 8), (2, 8), (2,)]
        assert self._shapes(step, w, batch={"x": x, "y": y}, roles=roles) == [(8, 8), (2, 8), (2,)]
        # No axis is common to a label for each example and 77 others, or one of them is all the step can take.
        other = {"x": x, "y": jax.ShapeDtypeStruct((77,), jnp.float32)}
        assert self._shapes(lambda w, b: (b["x"] @ w).sum() - b["y"], w, other, roles=roles) is None
        assert self._shapes(lambda w, b: (b["x"] @ w).reshape(10_000, 8), w, {"x": x, "y": y}, roles=roles) is None
        single = {"x": x, "y": jax.ShapeDtypeStruct((1,), jnp.float32)}
        assert self._shapes(step, w, single, roles=roles) == [(8, 8), (2, 8), (1,)]

    def test_examples_along_any_axis_that_the_batch_shares(self) -> None:
        """Time comes first, and only the examples have weights; then a cache, which has the examples along axis 1."""
        tokens, weights = jax.ShapeDtypeStruct((64, 16), jnp.int32), jax.ShapeDtypeStruct((16,), jnp.float32)
        roles = (Role.BATCH, Role.BATCH)
        assert self._shapes(lambda t, w: t.sum(0) * w, tokens, weights, roles=roles) == [(64, 2), (2,)]
        cache = jax.ShapeDtypeStruct((12, 16, 8), jnp.float32)
        roles = (Role.KV_CACHE, Role.BATCH)
        assert self._shapes(lambda c, w: c.at[:, :, 0].add(w), cache, weights, roles=roles) == [(12, 2, 8), (2,)]

    def test_minibatches_and_time_become_short_if_examples_are_not_enough(self) -> None:
        """8 minibatches of 16 x 256 rows, 2 x 4096 x 4096 operations each; at most 10^11 are run."""
        w, x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16), jax.ShapeDtypeStruct((8, 16, 256, 4096), jnp.bfloat16)
        roles = (Role.PARAMS, Role.BATCH)

        def step(w: Any, x: Any) -> Any:
            return jax.lax.map(lambda x: x @ w, x)

        def fixed(w: Any, x: Any) -> Any:
            return step(w, x).reshape(-1, 16, x.shape[2], 4096)

        assert self._shapes(step, w, x, roles=roles) == [(4096, 4096), (2, 2, 256, 4096)]
        assert self._shapes(fixed, w, x, roles=roles) == [(4096, 4096), (2, 16, 2, 4096)]
        large = jax.ShapeDtypeStruct((2**15, 2**14), jnp.bfloat16)  # 1 GiB
        assert self._shapes(lambda w, x: x.sum(), large, x, roles=roles) is None

    def test_values_are_small_and_of_the_kind_of_their_leaf(self) -> None:
        seen: list[Any] = []

        def step(x: Any, numbers: Any, key: Any, keys: Any, mode: str) -> Any:
            jax.debug.callback(lambda *values: seen.extend(values), x, numbers)
            assert mode == "train"
            return jax.random.normal(key, (3,)), jax.vmap(jax.random.bits)(keys)

        args = (
            jax.ShapeDtypeStruct((1000,), jnp.float32),
            jax.ShapeDtypeStruct((1000,), jnp.int32),
            jax.eval_shape(lambda: jax.random.key(0)),
            jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 5)),
            "train",
        )
        results = results_of(StepSpec(step, args, static_argnums=(4,)), nullcontext)
        assert [each.shape for each in results] == [(3,), (5,)]
        jax.effects_barrier()
        floats, integers = (np.asarray(each) for each in seen)
        assert 0.01 <= floats.min() < 0.02
        assert 0.09 < floats.max() <= 0.1
        assert set(integers) == {0, 1}


class TestMeaning:
    def _meaning(self, before: Any, after: Any, *, flops: int = 0, args: Any = (_F32,), **fields: Any) -> Meaning:
        """What two steps mean to each other, or a step and another function's results."""
        given = {"spec": StepSpec(after, args), **fields}
        change = Change(rule="r", intent=Intent(aim=Aim.DONATE), what="w", evidence="e", cost="c", **given)
        return MeaningCheck(_step(StepSpec(before, args), flops=flops)).of(change)

    def test_equal_close_and_different_numbers(self) -> None:
        """32-bit numbers are close within 1e-4 of them, 16-bit ones within what they can tell apart."""

        def of(*pairs: tuple[Any, Any]) -> Meaning:
            return compared(*([np.asarray(pair[side]) for pair in pairs] for side in (0, 1)))

        one = jnp.ones(3)
        assert of((one, one)) is Meaning.EQUAL
        partly = one.at[0].set(jnp.nan)
        assert of((partly, partly)) is Meaning.EQUAL
        assert of((one * jnp.nan, one * jnp.nan)) is Meaning.UNPROVED  # a step that overflows shows nothing
        assert of((one, one * 1.00005)) is Meaning.CLOSE
        assert of((one, one * 1.0003)) is Meaning.DIFFERENT
        assert of((one * 1000, one * 1000 + 0.05)) is Meaning.CLOSE
        assert of((one * 0, one * 0 + 0.9e-5)) is Meaning.CLOSE
        assert of((one * 0, one * 0 + 5e-5)) is Meaning.DIFFERENT
        halves = one.astype(jnp.bfloat16)
        assert of((halves, halves * jnp.bfloat16(1.0078125))) is Meaning.CLOSE
        assert of((halves, halves * jnp.bfloat16(1.0625))) is Meaning.DIFFERENT
        integers = jnp.arange(3)
        assert of((one, one), (integers, integers + 1)) is Meaning.DIFFERENT
        assert of((one, jnp.ones(4))) is Meaning.UNPROVED
        assert of() is Meaning.UNPROVED
        assert compared([np.ones(3)], [np.ones(3)] * 2) is Meaning.UNPROVED

    @pytest.mark.parametrize(
        ("factor", "dtype", "meaning"),
        [
            (1.002, jnp.bfloat16, Meaning.CLOSE),  # 2**-9 of the change
            (1.1, jnp.bfloat16, Meaning.DIFFERENT),  # much of the change, although little of the array
            (1.002, jnp.float32, Meaning.DIFFERENT),
        ],
    )
    def test_a_step_that_computes_in_16_bits_is_close_if_its_changes_are(
        self, factor: float, dtype: Any, meaning: Meaning
    ) -> None:
        def step(x: Any, factor: float = 1.0) -> Any:
            return x + factor * 0.1 * jnp.sqrt(x.astype(dtype)).astype(jnp.float32)

        assert self._meaning(step, lambda x: step(x, factor)) is meaning

    @pytest.mark.parametrize("flops", [0, 10**12])
    def test_a_change_that_its_search_proves_need_not_run(self, flops: int) -> None:
        rewrite = InMinibatches(number=2)

        def overflow(x: Any) -> Any:
            return x * jnp.nan

        of = partial(self._meaning, overflow, overflow, flops=flops, rewrite=rewrite)
        assert of() is Meaning.UNPROVED
        assert of(is_proved=True) is Meaning.SAME_OPERATIONS
        other = partial(self._meaning, lambda x: x, lambda x: x + 1, rewrite=rewrite, is_proved=True)
        assert other() is Meaning.DIFFERENT

    def test_a_small_step_is_run(self) -> None:
        assert self._meaning(lambda x: x + 1, lambda x: x + 1) is Meaning.EQUAL
        assert self._meaning(lambda x: x + 1, lambda x: x + 1.00001) is Meaning.CLOSE
        assert self._meaning(lambda x: x + 1, lambda x: x + 2) is Meaning.DIFFERENT
        assert self._meaning(lambda x: x + 1, lambda x: 1 / 0) is Meaning.UNPROVED
        assert self._meaning(lambda x: x + 1, lambda x: x + 1, keeps_numbers=False) is Meaning.DIFFERENT
        donating = Donation(positions=(0,))
        assert self._meaning(lambda x: x + 1, lambda x: x + 1, rewrite=donating) is Meaning.EQUAL

    def test_a_step_that_is_not_run_is_proved_from_its_trace(self) -> None:
        large = 10**12
        assert self._meaning(lambda x: x + 1, jax.checkpoint(lambda x: x + 1), flops=large) is Meaning.SAME_OPERATIONS
        assert self._meaning(lambda x: x + 1, lambda x: x + 2, flops=large) is Meaning.UNPROVED
        assert self._meaning(lambda x: x + 1, lambda x: 1 / 0, flops=large) is Meaning.UNPROVED
        donating = Donation(positions=(0,))
        assert self._meaning(lambda x: x, lambda x: x, flops=large, rewrite=donating) is Meaning.SAME_OPERATIONS
        # A rewrite is run: it replaces operations, or it has found nothing to replace.
        assert self._meaning(lambda x: x, lambda x: x, flops=large, rewrite=InChunks(loss=8)) is Meaning.UNPROVED

    def test_rounding_that_a_step_amplifies_is_no_other_meaning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """XLA rounds a checkpointed step otherwise, and second derivatives of it may amplify that to any difference."""
        monkeypatch.setattr(same_meaning, "compared", lambda before, after: Meaning.DIFFERENT)
        assert self._meaning(lambda x: x + 1, jax.checkpoint(lambda x: x + 1)) is Meaning.SAME_OPERATIONS
        assert self._meaning(lambda x: x + 1, lambda x: x + 2) is Meaning.DIFFERENT

    def test_a_step_whose_numbers_are_not_finite_is_proved_from_its_trace(self) -> None:
        def step(x: Any) -> Any:
            return jnp.log(-x)

        assert self._meaning(step, step) is Meaning.SAME_OPERATIONS

    def test_a_rewrite_that_changes_nothing_in_the_small_instance_proves_nothing(self) -> None:
        def plain(x: Any) -> Any:
            return x + 1

        def looped(x: Any) -> Any:
            return jax.lax.map(lambda each: each + 1, x)

        assert self._meaning(plain, plain, rewrite=InChunks(loss=8)) is Meaning.UNPROVED
        assert self._meaning(plain, looped, rewrite=InChunks(loss=8)) is Meaning.EQUAL

    def test_what_is_in_force_for_the_change_is_in_force_for_its_run(self) -> None:
        assert same_meaning.results_of(StepSpec(lambda x: x * 0 + 2, (_F32,)), nullcontext)[0].tolist() == [2.0] * 4
        entered: list[str] = []

        class Around:
            def __enter__(self) -> None:
                entered.append("in")

            def __exit__(self, *error: object) -> None:
                entered.append("out")

        results_of(StepSpec(plain, (_F32, _F32)), Around)
        assert entered == ["in", "out"]


adam = optax.adam(1e-3)


def _with_global(params: Any, state: Any) -> Any:
    return adam.update(params, state, params)


def _closures() -> Iterator[tuple[Any, str | None]]:
    sgd = optax.sgd(0.1)

    def one(params: Any, state: Any) -> Any:
        def inner() -> Any:
            return sgd.update(params, state)

        return inner()

    def two(params: Any, state: Any) -> Any:
        return sgd.update(*adam.update(params, state))

    yield one, "sgd"
    yield two, None
    yield _with_global, "adam"
    yield jax.jit(_with_global), "adam"
    yield plain, None
    yield max, None


class TestNarrowState:
    @pytest.mark.parametrize(("fn", "name"), list(_closures()))
    def test_the_one_optimizer_that_the_code_names(self, fn: Any, name: str | None) -> None:
        bound = _optimizer(StepSpec(fn, ()))
        assert (None if bound is None else bound.name) == name

    def test_the_float32_arrays_of_the_state_are_narrow(self) -> None:
        state = {"count": jax.ShapeDtypeStruct((), jnp.float32), "m": _F32, "n": jax.ShapeDtypeStruct((4,), jnp.int32)}
        arguments = (
            _leaf("params", Role.PARAMS, (4,)),
            _leaf("count", Role.OPTIMIZER_STATE, (), position=1),
            _leaf("m", Role.OPTIMIZER_STATE, (4,), position=1),
            _leaf("n", Role.OPTIMIZER_STATE, (4,), "int32", position=1),
        )
        spec = StepSpec(_with_global, (_F32, state))
        (change,) = narrow_optimizer_states(_step(spec, arguments=arguments))
        assert jax.tree.map(lambda leaf: str(leaf.dtype), change.spec.args) == (
            "float32",
            {"count": "float32", "m": "bfloat16", "n": "int32"},
        )
        assert change.evidence.startswith("16 bytes of it")  # 4 x 4
        assert change.code.endswith("adam = in_bfloat16(adam)\n")
        assert not change.keeps_numbers
        # The slow parameters of a lookahead are no state that the optimizer makes.
        pair = optax.LookaheadParams(fast=_F32, slow=_F32)
        arguments = (_leaf("params.fast", Role.PARAMS, (4,)), _leaf("params.slow", Role.OPTIMIZER_STATE, (4,)),
                     *arguments[1:])  # fmt: skip
        (change,) = narrow_optimizer_states(_step(replace(spec, args=(pair, state)), arguments=arguments))
        assert change.spec.args[0] == pair
        assert change.spec.args[1]["m"].dtype == jnp.bfloat16
        arguments = (arguments[0], *arguments[2:])
        unknown = (*arguments[:2], _leaf("m", Role.OPTIMIZER_STATE, (5,), position=1), arguments[3])
        assert not list(narrow_optimizer_states(_step(spec, arguments=unknown)))
        assert not list(narrow_optimizer_states(_step(spec, arguments=arguments[:2])))  # nothing is wide


class TestTechniques:
    def test_options_of_the_compiler_are_for_any_step_and_others_for_a_loss(self) -> None:
        advice = (
            _proposed("other_order", Intent(aim=Aim.SCHEDULE_FOR_MEMORY)),
            _proposed("cast", Intent(aim=Aim.CAST_PASSES)),
            _proposed("cast again", Intent(aim=Aim.CAST_PASSES)),
            _proposed("remat", Intent(aim=Aim.RECOMPUTE_MODULES)),
            _proposed("chunk", Intent(aim=Aim.CHUNK_LOSS, num_parts=8)),
        )
        spec = StepSpec(plain, (_F32, _F32), compiler_options={"xla_mine": True})
        labels = [each.proposal.technique for each in advice]
        assert labels[1] == labels[2] == "bf16"
        (option,) = techniques(_step(spec, advice=advice))
        assert option.rule == "other_order"
        assert len(option.spec.compiler_options) > 1
        assert option.spec.compiler_options["xla_mine"] is True

        def with_technique(label: str) -> StepSpec:
            if label == labels[4]:
                raise MemprofError("it does not apply")
            return replace(spec, workload=label)

        found = list(techniques(_step(spec, advice=advice, with_technique=with_technique)))
        assert [(each.rule, each.keeps_numbers) for each in found] == [("other_order", True), ("cast", False)]
        built_in = list(techniques(_step(spec, advice=advice, with_technique=with_technique, is_built_in=True)))
        assert [each.rule for each in built_in] == ["other_order", "cast", "remat"]

    def test_a_step_with_narrower_weights_or_caches_gives_other_numbers(self) -> None:
        narrower = {each for each in Aim if each.changes_numbers}
        assert {Aim.CAST_WEIGHTS, Aim.CAST_CACHE, Aim.CAST_WEIGHTS_AND_CACHE, Aim.CAST_ACCUMULATORS} < narrower
        assert Aim.NARROW_OPTIMIZER_STATE in narrower
        assert not narrower & {Aim.CAST_WEIGHTS_IN_LAYERS, Aim.CONVERT_WEIGHTS_ONCE, Aim.DONATE, Aim.CHUNK_LOSS}


def _of_size(length: int, *, seconds: float | None, flops: int) -> Report:
    bound = None if seconds is None else Roofline(
        at_least_seconds=seconds, compute_share=1.0, memory_share=0.0, communication_share=0.0, priced_share=1.0
    )  # fmt: skip
    made = report([buffer((length,), "f32", Category.ACTIVATIONS)], target=H100)
    return replace(made, roofline=bound, recomputed_flops=flops)


def test_a_saving_is_the_difference_of_two_compiles() -> None:
    """From 4,000 to 1,000 bytes; 7 operations more; 0.5 s more, where both have a bound."""
    change = Change(
        rule="r", intent=Intent(aim=Aim.DONATE), what="w", evidence="e", cost="c", code="code", spec=StepSpec(plain, ())
    )
    before, after = _of_size(1000, seconds=1.0, flops=3), _of_size(250, seconds=1.5, flops=10)
    found = _advice(before, change, after, Meaning.EQUAL)
    assert found.compiled is not None
    assert (found.saving_bytes, found.compiled.footprint_bytes, found.compiled.recomputed_flops) == (3000, 1000, 7)
    assert found.compiled.seconds == 0.5
    for pair in ((replace(before, roofline=None), after), (before, replace(after, roofline=None))):
        unpriced = _advice(pair[0], change, pair[1], Meaning.EQUAL)
        assert unpriced.compiled is not None
        assert unpriced.compiled.seconds is None
    worse = _advice(after, change, before, Meaning.EQUAL)
    assert (worse.saving_bytes, worse.bound_bytes) == (-3000, 0)
    pressed = replace(before, without_limit=_of_size(2000, seconds=1.0, flops=3))
    assert _advice(pressed, change, after, Meaning.EQUAL).saving_bytes == 7000
