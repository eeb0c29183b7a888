"""Compute a step's examples in parts. Data flow shows how far they do not mix.

If the loss is a sum over the examples, gradients are accumulated over minibatches. If a `vmap` differentiates a loss of
each example, the whole step is divided. Otherwise the part of the loss in which examples do not mix is computed in
chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax

from memprof.analysis.records.rewrites import ExamplesInChunks, InMinibatches, StepInMinibatches
from memprof.errors import MemprofError
from memprof.sources.jax.checkpointing.apply import traced_within
from memprof.sources.jax.checkpointing.divided_loss import Loss
from memprof.sources.jax.checkpointing.divided_step import step_in_minibatches
from memprof.sources.jax.checkpointing.example_chunks import examples_in_chunks
from memprof.sources.jax.checkpointing.minibatches import in_minibatches
from memprof.sources.jax.compile import traced_jaxpr
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.own_jit import changed_step, with_rewrite
from memprof.workloads.intents import Aim, Intent

RULE = "accumulated_gradients"
_MAX_PARTS = 64
_Divide = Callable[[Callable[..., Any], Any, list[int]], Callable[..., Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A way to compute the examples in parts.

    Attributes:
        rewrite: the class of the rewrite.
        divide: applies a rewrite to a step. When the step is traced, it adds the numbers of divided examples to a list.
        num_parts: the number of parts that is advised, or the next lower one that divides the examples.
        what, evidence, cost: the texts of a change, with the numbers of parts, of examples, and of those in a part.
    """

    rewrite: type[ExamplesInChunks] | type[InMinibatches] | type[StepInMinibatches]
    divide: _Divide
    rule: str
    aim: Aim
    num_parts: int
    what: str
    evidence: str
    cost: str

    def of_step(self, step: Step, number: int) -> ExamplesInChunks | InMinibatches | StepInMinibatches:
        """Return the rewrite of a step for a number of parts."""
        return self.rewrite(number=number, interleaved=step.target.topology.num_devices > 1)


def _losses(divided: Callable[[Any], AbstractContextManager[list[Loss]]]) -> _Divide:
    """Return a function that traces a step within a context in which its losses are divided."""

    def divide(fn: Callable[..., Any], rewrite: Any, found: list[int]) -> Callable[..., Any]:
        @contextmanager
        def around() -> Iterator[None]:
            with divided(rewrite) as losses:
                yield
            found.extend(each.num_examples for each in losses if each.num_examples is not None)

        return traced_within(fn, around)

    return divide


_MINIBATCHES = _Way(
    rewrite=InMinibatches,
    divide=_losses(in_minibatches),
    rule=RULE,
    aim=Aim.ACCUMULATE_GRADIENTS,
    num_parts=4,
    what="Accumulate the gradients of {parts} minibatches of {part}",
    evidence="by data flow, the loss is a sum over {whole}",
    cost="nothing is recomputed, but each product has 1/{parts} of the rows; sums of the gradients are live during the"
    " passes",
)
_WHOLE_STEP = replace(
    _MINIBATCHES,
    rewrite=StepInMinibatches,
    divide=step_in_minibatches,
    num_parts=8,  # each example has gradients of its own, as large as the parameters
    evidence="by data flow, the step computes each of {whole} alone, and adds up the results",
)
_CHUNKS = _Way(
    rewrite=ExamplesInChunks,
    divide=_losses(examples_in_chunks),
    rule="chunked_examples",
    aim=Aim.RECOMPUTE_MODULES,
    num_parts=8,
    what="Compute {parts} chunks of the examples in turn, up to where the loss mixes them",
    evidence="by data flow, a part of the loss does not mix its {whole}",
    cost="recomputes that part; each of its products has 1/{parts} of the rows",
)


def in_parts(step: Step) -> Iterator[Change]:
    """Yield the step with gradients accumulated over a few minibatches; if that is impossible, with chunks."""
    for way in (_MINIBATCHES, _WHOLE_STEP, _CHUNKS):
        num_examples = _num_examples(step, way)
        if num_examples is not None:
            yield from _changes(step, way, num_examples, _divisors(step, num_examples, way.num_parts)[-1:])
            return


def accumulated_more_and_more(step: Step) -> Iterator[Change]:
    """Yield the step with accumulated gradients, each time over at least twice as many minibatches."""
    return _more_and_more(step, (_MINIBATCHES, _WHOLE_STEP))


def chunked_more_and_more(step: Step) -> Iterator[Change]:
    """Yield the step with examples in chunks, each time in at least twice as many."""
    return _more_and_more(step, (_CHUNKS,))


def _more_and_more(step: Step, ways: Sequence[_Way]) -> Iterator[Change]:
    for way in ways:
        num_examples = _num_examples(step, way)
        if num_examples is not None:
            yield from _changes(step, way, num_examples, _doubled(step, num_examples))
            return


def _num_examples(step: Step, way: _Way) -> int | None:
    """Return the number of examples that a way divides into at most 64 parts; None if it cannot."""
    if step.is_composed:
        return None
    found: list[int] = []
    changed = changed_step(step.spec, lambda fn: way.divide(fn, way.of_step(step, _MAX_PARTS), found))
    if changed is None:
        return None
    try:
        traced_jaxpr(changed, step.target)
    except MemprofError:
        return None
    return min(found)


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


def _changes(step: Step, way: _Way, num_examples: int, numbers: Sequence[int]) -> Iterator[Change]:
    """Yield a change for each number of parts."""
    for number in numbers:
        rewrite = way.of_step(step, number)
        applied = with_rewrite(step.spec, rewrite)
        if applied is None:
            return
        code, changed = applied
        names = {"parts": number, "part": _examples(num_examples // number), "whole": _examples(num_examples)}
        yield Change(
            rule=way.rule,
            intent=Intent(aim=way.aim, num_parts=number),
            what=way.what.format(**names),
            evidence=way.evidence.format(**names),
            cost=way.cost.format(**names),
            code=code,
            spec=changed,
            rewrite=rewrite,
            is_proved=True,
        )


def _examples(number: int) -> str:
    return "1 example" if number == 1 else f"{number:,} examples"
