"""Compute a step's loss in parts of its examples. Data flow shows how far examples do not mix.

If the loss is a sum over the examples, gradients are accumulated over minibatches. Otherwise the part of it in which
examples do not mix is computed in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax

from memprof.analysis.records.rewrites import ExamplesInChunks, InMinibatches
from memprof.errors import MemprofError
from memprof.sources.jax.checkpointing.divided_loss import Loss
from memprof.sources.jax.checkpointing.example_chunks import examples_in_chunks
from memprof.sources.jax.checkpointing.minibatches import in_minibatches
from memprof.sources.jax.compile import traced_jaxpr
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.own_jit import with_rewrite
from memprof.workloads.intents import Aim, Intent

RULE = "accumulated_gradients"
_NUM_PARTS = 4
_NUM_CHUNKS = 8
_MAX_PARTS = 64


def in_parts(step: Step) -> Iterator[Change]:
    """Yield the step with gradients accumulated over four minibatches, or fewer; if that is impossible, with chunks."""
    num_examples = _num_examples(step, in_minibatches(_minibatches(step, _MAX_PARTS)))
    if num_examples is not None:
        yield from _in_minibatches(step, num_examples, _divisors(step, num_examples, _NUM_PARTS)[-1:])
        return
    num_examples = _num_examples(step, examples_in_chunks(_chunks(step, _NUM_CHUNKS)))
    if num_examples is not None:
        yield from _in_chunks(step, num_examples, _divisors(step, num_examples, _NUM_CHUNKS)[-1:])


def accumulated_more_and_more(step: Step) -> Iterator[Change]:
    """Yield the step with accumulated gradients, each time over at least twice as many minibatches."""
    num_examples = _num_examples(step, in_minibatches(_minibatches(step, _MAX_PARTS)))
    if num_examples is not None:
        yield from _in_minibatches(step, num_examples, _doubled(step, num_examples))


def chunked_more_and_more(step: Step) -> Iterator[Change]:
    """Yield the step with examples in chunks, each time in at least twice as many."""
    num_examples = _num_examples(step, examples_in_chunks(_chunks(step, _MAX_PARTS)))
    if num_examples is not None:
        yield from _in_chunks(step, num_examples, _doubled(step, num_examples))


def _num_examples(step: Step, divided: AbstractContextManager[list[Loss]]) -> int | None:
    """Return the number of examples of a step's losses; None if they cannot be divided."""
    if step.is_composed:
        return None
    try:
        with divided as losses:
            traced_jaxpr(step.spec, step.target)
    except MemprofError:
        return None
    return min(each.num_examples for each in losses if each.num_examples is not None)


def _divisors(step: Step, num_examples: int, most: int) -> list[int]:
    """Return the numbers of equal parts of the examples in which each device has examples."""
    num_shards = max(
        (each for leaf in jax.tree.leaves(step.spec.args) for each in _shards(leaf, num_examples)), default=1
    )
    return [each for each in range(2, most + 1) if num_examples % (each * num_shards) == 0]


def _shards(leaf: Any, num_examples: int) -> Iterator[int]:
    """Yield the numbers of parts into which an argument's sharding divides an axis of the examples."""
    shape, sharding = getattr(leaf, "shape", ()), getattr(leaf, "sharding", None)
    if isinstance(sharding, jax.sharding.NamedSharding):
        of_device = sharding.shard_shape(shape)
        yield from (whole // part for whole, part in zip(shape, of_device, strict=True) if whole == num_examples)


def _doubled(step: Step, num_examples: int) -> list[int]:
    """Return numbers of equal parts, each at least twice the one before."""
    doubled: list[int] = []
    for number in _divisors(step, num_examples, _MAX_PARTS):
        if not doubled or number >= 2 * doubled[-1]:
            doubled.append(number)
    return doubled


def _minibatches(step: Step, number: int) -> InMinibatches:
    return InMinibatches(number=number, interleaved=step.target.topology.num_devices > 1)


def _chunks(step: Step, number: int) -> ExamplesInChunks:
    return ExamplesInChunks(number=number, interleaved=step.target.topology.num_devices > 1)


def _in_minibatches(step: Step, num_examples: int, numbers: Sequence[int]) -> Iterator[Change]:
    """Yield a change for each number of minibatches."""
    for number in numbers:
        rewrite = _minibatches(step, number)
        applied = with_rewrite(step.spec, rewrite)
        if applied is None:
            return
        code, changed = applied
        yield Change(
            rule=RULE,
            intent=Intent(aim=Aim.ACCUMULATE_GRADIENTS, num_parts=number),
            what=f"Accumulate the gradients of {number} minibatches of {_examples(num_examples // number)}",
            evidence=f"by data flow, the loss is a sum over {num_examples:,} examples",
            cost=f"nothing is recomputed, but each product has 1/{number} of the rows; sums of the gradients are live"
            " during the passes",
            code=code,
            spec=changed,
            rewrite=rewrite,
            is_proved=True,
        )


def _in_chunks(step: Step, num_examples: int, numbers: Sequence[int]) -> Iterator[Change]:
    """Yield, for each number of chunks, the step with the part of its loss in which examples do not mix in chunks."""
    for number in numbers:
        rewrite = _chunks(step, number)
        applied = with_rewrite(step.spec, rewrite)
        if applied is None:
            return
        code, changed = applied
        yield Change(
            rule="chunked_examples",
            intent=Intent(aim=Aim.RECOMPUTE_MODULES, num_parts=number),
            what=f"Compute {number} chunks of the examples in turn, up to where the loss mixes them",
            evidence=f"by data flow, a part of the loss does not mix its {num_examples:,} examples",
            cost=f"recomputes that part; each of its products has 1/{number} of the rows",
            code=code,
            spec=changed,
            rewrite=rewrite,
            is_proved=True,
        )


def _examples(number: int) -> str:
    return "1 example" if number == 1 else f"{number:,} examples"
