"""Steps with one mistake in their sharding, compiled for eight H100s: each is found and named, with its bytes."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import memprof
from memprof import Category
from memprof.studies.advice.advise import advise

WIDTH, NUM_LAYERS, BATCH, VOCABULARY = 256, 4, 64, 4096
LAYER, HEAD = 4 * WIDTH * WIDTH, 4 * WIDTH * VOCABULARY
FSDP, TX = P("fsdp"), optax.adam(1e-3)


def loss(params: Any, x: Any, labels: Any, *, mesh: Mesh, gathers: bool, gathers_batch: bool) -> Any:
    def whole(weight: Any) -> Any:
        return jax.lax.with_sharding_constraint(weight, NamedSharding(mesh, P())) if gathers else weight

    if gathers_batch:
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P()))
    layers = params["layers"]
    if isinstance(layers, dict):
        for name in layers:
            x = jnp.tanh(x @ whole(layers[name]["w"]))
    else:
        body = jax.checkpoint(lambda x, weight: (jnp.tanh(x @ whole(weight)), None))
        x, _ = jax.lax.scan(body, x, layers)
    if "head" not in params:
        return jnp.mean(x)
    return optax.softmax_cross_entropy_with_integer_labels(x @ whole(params["head"]), labels).mean()


def profile(
    mesh: Mesh,
    *,
    layers: P,
    batch: P,
    head: P | None = None,
    moments: P | None = None,
    scanned: bool = False,
    gathers: bool = False,
    gathers_batch: bool = False,
    num_examples: int = BATCH,
) -> memprof.Profile:
    """A step of Adam.

    Args:
        head: None: the model ends with its layers.
        moments: of the optimizer, where they do not lie as their parameters do.
        gathers: the step asks for whole weights, as FSDP written by hand does.
        gathers_batch: it asks for all examples.
    """

    def shape(spec: P, *dimensions: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dimensions, dtype, sharding=NamedSharding(mesh, spec))

    def tree(layers: P, head: P | None) -> Any:
        weights = {f"layer_{n}": {"w": shape(layers, WIDTH, WIDTH)} for n in range(NUM_LAYERS)}
        stacked = shape(P(None, *layers), NUM_LAYERS, WIDTH, WIDTH)
        last = {} if head is None else {"head": shape(head, WIDTH, VOCABULARY)}
        return {"layers": stacked if scanned else weights, **last}

    def step(state: Any, x: Any, labels: Any) -> Any:
        params, opt_state = state
        grads = jax.grad(partial(loss, mesh=mesh, gathers=gathers, gathers_batch=gathers_batch))(params, x, labels)
        updates, opt_state = TX.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    params = tree(layers, head)
    of_moments = params if moments is None else tree(moments, moments)
    opt_state = optax.tree_map_params(
        TX,
        lambda _, moment: moment,
        jax.eval_shape(TX.init, params),
        of_moments,
        transform_non_params=lambda leaf: leaf,
    )
    examples = shape(batch, num_examples, WIDTH), shape(batch, num_examples, dtype="int32")
    return memprof.profile(step, (params, opt_state), *examples, donate_argnums=0)


def found(made: memprof.Profile) -> dict[str, Any]:
    """The rules that speak of a mesh, by what they would do."""
    names = ("replicated_state", "gather_in_chunks", "gathered_batch", "undivided_batch", "undivided_logits")
    return {each.proposal.what: each for each in advise(made.report) if each.rule in names}


def h100s(**axes: int) -> Mesh:
    return memprof.mesh("h100-80gb", axes)


@pytest.mark.with_one_jax
def test_a_replicated_optimizer_state_is_named_with_its_bytes() -> None:
    made = profile(h100s(fsdp=8), layers=FSDP, head=P(None, "fsdp"), moments=P(), batch=FSDP)
    advice = found(made)["Divide optimizer state over fsdp=8"]
    moments_bytes = 2 * (NUM_LAYERS * LAYER + HEAD)
    assert f"10 arrays ({moments_bytes:,} bytes) of optimizer state" in advice.proposal.evidence
    assert advice.saving_bytes == moments_bytes - moments_bytes // 8
    assert "Divide params over fsdp=8" not in found(made)


@pytest.mark.with_one_jax
def test_one_replicated_head_is_named_with_its_bytes() -> None:
    made = profile(h100s(fsdp=8), layers=FSDP, head=P(), batch=FSDP)
    advice = found(made)["Divide params over fsdp=8"]
    assert advice.proposal.evidence == (
        f"1 array ({HEAD:,} bytes) of params are the same on all 8 devices along fsdp; the largest is state[0]['head']"
    )
    assert advice.saving_bytes == HEAD - HEAD // 8
    assert f"2 arrays ({2 * HEAD:,} bytes)" in found(made)["Divide optimizer state over fsdp=8"].proposal.evidence


def test_a_batch_that_is_not_divided_is_named_with_its_bytes() -> None:
    made = profile(h100s(dp=2, fsdp=4), layers=FSDP, batch=P("dp"), gathers=True, num_examples=2048)
    advice = found(made)["Divide the batch over fsdp=4"]
    # 1,024 examples on a device, where 256 would do: the input, and six of what layers give and their cotangents
    of_examples = 4 * 1024 * WIDTH
    assert made.categories[Category.ACTIVATIONS] + made.categories[Category.COTANGENTS] == 6 * of_examples
    assert f"{7 * of_examples:,} bytes" in advice.proposal.evidence
    assert "all 4 devices along fsdp have the same 1,024 examples" in advice.proposal.evidence
    assert 'PartitionSpec(("dp", "fsdp"))' in advice.proposal.how_to


def test_a_batch_that_is_gathered_in_the_step_is_named_with_its_bytes() -> None:
    made = profile(h100s(dp=8), layers=P(), batch=P("dp"), num_examples=2048, gathers_batch=True)
    advice = found(made)["Keep all values computed from the batch divided over dp=8"]
    # of all 2,048 examples: the gathered input, what three layers give, and four cotangents
    assert f"8 arrays ({8 * 4 * 2048 * WIDTH:,} bytes) at the peak" in advice.proposal.evidence
    assert "the largest is made at test_sharding_faults.py:" in advice.proposal.evidence
    assert 'PartitionSpec("dp")' in advice.proposal.how_to


@pytest.mark.with_one_jax
def test_an_axis_that_nothing_uses_is_named_with_its_bytes() -> None:
    made = profile(h100s(dp=2, fsdp=4), layers=P(), head=P(), batch=P("dp"), num_examples=2048)
    advice = found(made)
    assert not any("fsdp" in each.axes for each in made.report.collectives)
    params_bytes = NUM_LAYERS * LAYER + HEAD
    assert advice["Divide params over fsdp=4"].saving_bytes == params_bytes - params_bytes // 4
    assert advice["Divide optimizer state over fsdp=4"].saving_bytes == 2 * (params_bytes - params_bytes // 4)
    of_batch = (Category.BATCH, Category.ACTIVATIONS, Category.COTANGENTS)
    passes_bytes = sum(made.categories[category] for category in of_batch)
    assert f"{passes_bytes:,} bytes" in advice["Divide the batch over fsdp=4"].proposal.evidence
    logits_bytes = 4 * 1024 * VOCABULARY  # and their cotangent
    assert (
        f"2 arrays ({2 * logits_bytes:,} bytes)"
        in advice["Divide the columns of the logits over fsdp=4"].proposal.evidence
    )


def gathered_at_once(made: memprof.Profile) -> int:
    """The most bytes of gathered parameters at a moment."""
    live = [each for each in made.report.temp_buffers if each.category is Category.GATHERED_PARAMS]
    return max(sum(each.size_bytes for each in live if each.start <= at <= each.end) for at in {x.start for x in live})


# What one device needs of a layer's weight for its part of the product.
@pytest.mark.parametrize(
    ("axes", "layers", "of_layer"),
    [({"fsdp": 8}, P("fsdp"), LAYER), ({"fsdp": 4, "tp": 2}, P("fsdp", "tp"), LAYER // 2)],
)
def test_gathered_parameters_are_those_of_the_layers_that_are_gathered(
    axes: dict[str, int], layers: P, of_layer: int
) -> None:
    at_once = profile(h100s(**axes), layers=layers, batch=FSDP)
    assert gathered_at_once(at_once) == NUM_LAYERS * of_layer
    by_layer = profile(h100s(**axes), layers=layers, batch=FSDP, scanned=True)
    assert gathered_at_once(by_layer) == of_layer
    assert by_layer.categories[Category.GATHERED_PARAMS] in (0, of_layer)  # with jax 0.12 the peak lies between layers
    # All layers once, or each for its forward pass and again for its backward pass.
    for made, times in ((at_once, 1), (by_layer, 2)):
        (gathers,) = [each for each in made.report.collectives if each.kind == "all-gather" and each.param_bytes]
        assert (gathers.axes, gathers.param_bytes) == (("fsdp",), times * NUM_LAYERS * of_layer)
    assert "Gather parameters layer by layer" not in found(by_layer)
    if "tp" not in axes:  # there the peak lies elsewhere
        assert at_once.categories[Category.GATHERED_PARAMS] == NUM_LAYERS * LAYER
        evidence = found(at_once)["Gather parameters layer by layer"].proposal.evidence
        assert evidence.startswith(f"4 arrays ({NUM_LAYERS * LAYER:,} bytes) of gathered parameters")
        assert evidence.endswith(f"hold {LAYER:,}")


# Wide layers, or many examples: XLA delays all products, or half of them.
@pytest.mark.parametrize(("width", "num_examples", "part"), [(1024, 65536, 0.2), (512, 32768, 0.1)])
def test_weight_gradients_that_wait_for_collectives_are_found_and_the_option_has_them_run(
    width: int, num_examples: int, part: float
) -> None:
    """Data parallel: XLA delays the products that make gradients, so that they run beside the sum over devices."""
    mesh = memprof.mesh("h100-80gb", {"data": 8})

    def step(weights: list[Any], x: Any) -> Any:
        def loss(weights: list[Any]) -> Any:
            hidden = x
            for weight in weights:
                hidden = jnp.tanh(hidden @ weight)
            return jnp.mean(hidden * hidden)

        value, grads = jax.value_and_grad(loss)(weights)
        whole = NamedSharding(mesh, P())
        updated = [weight - 0.1 * grad for weight, grad in zip(weights, grads, strict=True)]
        return [jax.lax.with_sharding_constraint(weight, whole) for weight in updated], value

    weights = [jax.ShapeDtypeStruct((width, width), "float32", sharding=NamedSharding(mesh, P()))] * 8
    x = jax.ShapeDtypeStruct((num_examples, width), "float32", sharding=NamedSharding(mesh, P("data")))
    waiting = memprof.profile(step, weights, x, donate_argnums=0)
    (advice,) = [each for each in advise(waiting.report) if each.rule == "other_order"]
    name, value = str(advice.proposal.technique).removeprefix("xla:").split("=")
    followed = memprof.profile(step, weights, x, donate_argnums=0, compiler_options={name: value})
    saved_bytes = waiting.report.footprint_bytes - followed.report.footprint_bytes
    assert advice.saving_bytes == pytest.approx(saved_bytes, rel=0.1)
    assert saved_bytes > part * waiting.report.footprint_bytes
