"""Losses and attentions of a step in chunks, and products of which few rows are read: which are worth a compile."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from report_builder import H100

from memprof.analysis.records.capture import Topology
from memprof.analysis.records.categories import Phase
from memprof.analysis.records.rewrites import InChunks, OnlyReadRows
from memprof.sources.jax.compile import traced_jaxpr
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.chunks import in_chunks, least_bytes
from memprof.studies.changes.read_rows import only_read_rows
from memprof.workloads.intents import Aim

_LOGITS_BYTES = 4 * 200 * 1024 * 4  # of 4 sequences
_SCORES_BYTES = 4 * 200 * 200 * 4  # in each of two layers


def attend(x: Any, w: Any) -> Any:
    query, key, value = jnp.split(x @ w, 3, -1)
    scores = jnp.einsum("btd,bsd->bts", query, key)
    mask = jnp.tril(jnp.ones(scores.shape[1:], bool))
    return x + jax.nn.softmax(jnp.where(mask, scores, -1e9)) @ value


def loss(params: Any, tokens: Any) -> Any:
    x = params["embed"][tokens[:, :-1]]
    for w in params["layers"]:
        x = attend(x, w)
    logp = jax.nn.log_softmax(x @ params["embed"].T)
    return -jnp.take_along_axis(logp, tokens[:, 1:, None], -1).mean()


def step(params: Any, tokens: Any) -> Any:
    return jax.grad(loss)(params, tokens)


def _step(
    *,
    vocabulary: int = 1024,
    batch: int = 4,
    footprint_bytes: int = 0,
    trip_counts: tuple[int | None, ...] = (),
    **fields: Any,
) -> Step:
    weights = [jax.ShapeDtypeStruct((16, 48), jnp.float32)] * 2
    params = {"embed": jax.ShapeDtypeStruct((vocabulary, 16), jnp.float32), "layers": weights}
    spec = StepSpec(step, (params, jax.ShapeDtypeStruct((batch, 201), jnp.int32)))
    known: Any = SimpleNamespace(
        program=SimpleNamespace(
            loops=[SimpleNamespace(trip_count=count) for count in trip_counts],
            operations=[SimpleNamespace(phase=Phase.BACKWARD)],
        ),
        unpressed=SimpleNamespace(footprint_bytes=footprint_bytes),
    )
    return Step(**{"spec": spec, "target": H100, "report": known, "advice": (), **fields})


def _lengths(change: Change) -> set[int]:
    """The numbers of turns of all loops in the traced step."""
    return {int(each) for each in re.findall(r"\blength=(\d+)", str(traced_jaxpr(change.spec, H100)))}


def test_the_loss_and_the_attentions_are_two_changes() -> None:
    of_loss, of_attention = in_chunks(_step())
    assert (of_loss.rule, of_loss.intent.aim, of_loss.intent.num_parts) == ("chunked_loss", Aim.CHUNK_LOSS, 8)
    assert of_loss.what == "Compute the logits and their loss in 8 chunks"
    assert of_loss.evidence == ("losses of logits found by data flow: 1; the largest makes 3,276,800 bytes at once")
    assert (
        of_loss.code
        == "import memprof\n\n# after the definition of step\nstep = memprof.apply(memprof.InChunks(loss=8))(step)"
    )
    assert of_loss.rewrite == InChunks(loss=8)
    assert of_attention.rule == "chunked_attention"
    assert of_attention.intent.aim is Aim.CHUNK_ATTENTION
    assert of_attention.what == "Attend with one of 8 blocks of queries at a time"
    assert of_attention.evidence == ("attentions found by data flow: 2; the largest makes 640,000 bytes at once")
    assert of_attention.rewrite == InChunks(attention=8)
    assert _lengths(of_loss) == _lengths(of_attention) == {8}
    assert of_loss.keeps_numbers
    assert of_loss.is_proved
    assert of_attention.is_proved


def test_on_several_devices_chunks_take_rows_at_equal_distances() -> None:
    """Consecutive rows of a batch are on one device, so the other devices would have to gather them."""
    on_mesh = replace(H100, topology=Topology(num_devices=2, axes={"data": 2}))
    of_loss, of_attention = in_chunks(_step(target=on_mesh))
    assert of_loss.rewrite == InChunks(loss=8, interleaved=True)
    assert of_loss.code.endswith("memprof.apply(memprof.InChunks(loss=8, interleaved=True))(step)")
    assert of_attention.rewrite == InChunks(attention=8, interleaved=True)


@pytest.mark.parametrize(
    ("footprint_bytes", "trip_counts", "rules"),
    [
        (200 * 2 * _SCORES_BYTES, (), ["chunked_loss", "chunked_attention"]),  # half a percent of it
        (200 * 2 * _SCORES_BYTES + 1000, (), ["chunked_loss"]),
        (200 * _LOGITS_BYTES, (), ["chunked_loss"]),
        (200 * _LOGITS_BYTES + 1000, (), []),
        # In a loop each turn may keep the array, as often as the longest one turns.
        (200 * 5 * _LOGITS_BYTES, (3, 5, None), ["chunked_loss"]),
        (200 * 5 * _LOGITS_BYTES + 5000, (3, 5, None), []),
        (200 * _LOGITS_BYTES + 1000, (None,), []),
    ],
)
def test_what_is_half_a_percent_of_the_footprint_is_worth_a_compile(
    footprint_bytes: int, trip_counts: tuple[int | None, ...], rules: list[str]
) -> None:
    made = _step(footprint_bytes=footprint_bytes, trip_counts=trip_counts)
    assert [change.rule for change in in_chunks(made)] == rules


def test_a_step_without_gradients_recomputes_nothing() -> None:
    made = _step()
    made.report.program.operations.clear()
    evaluated = replace(made, spec=replace(made.spec, fn=loss))
    of_loss, of_attention = in_chunks(evaluated)
    assert of_loss.cost == of_attention.cost == "computes them in a loop"
    assert _lengths(of_loss) == _lengths(of_attention) == {8}


def test_the_least_size_is_that_for_one_turn() -> None:
    assert least_bytes(_step(footprint_bytes=1000)) == 5.0
    assert least_bytes(_step(footprint_bytes=1000, trip_counts=(2, 5, 3))) == 1.0


def test_a_device_of_a_mesh_has_its_share_of_the_arrays() -> None:
    two = replace(H100, topology=Topology(num_devices=2, axes={"data": 2}))
    footprint_bytes = 100 * _LOGITS_BYTES
    assert [each.rule for each in in_chunks(_step(footprint_bytes=footprint_bytes, target=two))] == ["chunked_loss"]
    assert not list(in_chunks(_step(footprint_bytes=footprint_bytes + 1000, target=two)))


@pytest.mark.parametrize(
    ("vocabulary", "batch", "num_parts"),
    [
        (1 << 15, 80, 8),  # 80 x 200 x 2^15 x 4 bytes are 7.8 times 256 MiB
        (1 << 15, 82, 9),  # 8.01 times
        (1 << 15, 655, 64),  # 63.96 times
        (1 << 16, 655, 64),  # the most
    ],
)
def test_a_part_of_the_first_product_has_at_most_256_mib(vocabulary: int, batch: int, num_parts: int) -> None:
    of_loss, of_attention = in_chunks(_step(vocabulary=vocabulary, batch=batch))
    assert of_loss.intent.num_parts == num_parts
    assert of_loss.rewrite == InChunks(loss=num_parts)
    assert f"InChunks(loss={num_parts})" in of_loss.code
    assert of_attention.intent.num_parts == 8


_PROMPTS = StepSpec(
    lambda embed, tokens, lengths: (jnp.tanh(embed[tokens]) @ embed.T)[jnp.arange(4), lengths],
    (
        jax.ShapeDtypeStruct((1024, 16), jnp.float32),
        jax.ShapeDtypeStruct((4, 200), jnp.int32),
        jax.ShapeDtypeStruct((4,), jnp.int32),
    ),
)


def test_only_read_logits_are_a_change() -> None:
    made = replace(_step(), spec=_PROMPTS)
    (change,) = only_read_rows(made)
    assert (change.rule, change.intent.aim) == ("whole_prompt_logits", Aim.KEEP_LAST_LOGITS)
    unread = _LOGITS_BYTES // 200 * 199
    assert change.evidence == (
        "matrix products of which few rows are read, found by data flow: 1;"
        " of the largest, 3,260,416 bytes are never read"
    )
    assert unread == 3_260_416
    assert change.code.endswith("step = memprof.apply(memprof.OnlyReadRows())(step)")
    assert change.rewrite == OnlyReadRows()
    assert change.is_proved
    assert not list(only_read_rows(replace(_step(footprint_bytes=200 * unread + 1000), spec=_PROMPTS)))
    assert not list(only_read_rows(_step()))
    assert not list(only_read_rows(replace(made, is_built_in=True)))


def test_a_step_of_memprof_or_with_techniques_has_rules_of_its_own() -> None:
    assert not list(in_chunks(_step(is_built_in=True)))
    assert not list(in_chunks(_step(with_technique=lambda label: StepSpec(step, ()))))


def test_a_jit_of_a_framework_with_shardings_cannot_be_written_again() -> None:
    sharding = NamedSharding(jax.make_mesh((1,), ("data",)), PartitionSpec())
    made = _step()
    sharded = nnx.jit(step, in_shardings=(sharding, sharding))
    assert not list(in_chunks(replace(made, spec=StepSpec(sharded, made.spec.args))))
