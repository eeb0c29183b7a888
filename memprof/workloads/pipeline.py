"""A pipeline: each device of an axis has some of the layers, and the parts of a batch go from one to the next.

This is GPipe's schedule (Huang et al. 2018, arXiv:1811.06965) as one program for all devices, with `jax.shard_map` and
`jax.lax.ppermute`. In each tick every stage runs a microbatch through its layers and passes it on. S stages and M
microbatches take M + S - 1 ticks. Each stage does useful work in M of them; in the others its results are unused,
because a program that is the same on all devices cannot idle. JAX derives the backward pass: the same ticks from last
to first, with the microbatches passed back.

The microbatches lie on a belt that moves past all stages, M / S at each. In each tick the first stage takes one from
the front, and the last stage puts its result at the back. The first S - 1 results belong to no microbatch, and have
left the front by the end of the last tick. The belt then holds the results in order, and each device has its part of
them for the code that follows. The code before and after the layers is therefore also divided over the axis, by
examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

RunStage = Callable[[Any, Any, jax.Array], tuple[Any, Any]]


def pipeline(
    run_stage: RunStage, params: Any, batch: Any, rng: jax.Array, *, axis: str, num_microbatches: int
) -> tuple[Any, Any]:
    """Run a batch through all layers. Each stage of the mesh axis runs it through its own layers.

    The mesh is that of the context (`jax.set_mesh`). Its other axes are left to XLA.

    Args:
        run_stage: maps the layers of one stage, a microbatch and a key to the next microbatch (the same tree, shapes
            and dtypes) and its losses (scalars in any tree).
        params: the parameters of all layers, stacked: the size of the mesh axis divides the first axis of each array.
        batch: arrays in any tree whose first axis is the example.
        rng: source of the stages' keys; each tick and stage gets a different one.
        num_microbatches: divides the number of examples, and is a multiple of the mesh axis's size; 0 means that size.

    Returns:
        The batch after the last layer, and the losses of all layers, each the mean over the microbatches.
    """
    num_stages = jax.sharding.get_abstract_mesh().shape[axis]
    num_microbatches = num_microbatches or num_stages

    def of_stage(params: Any, belt: Any, rng: jax.Array) -> tuple[Any, Any]:
        stage = jax.lax.axis_index(axis)

        def tick(carry: tuple[Any, Any], number: jax.Array) -> tuple[tuple[Any, Any], Any]:
            belt, arrived = carry
            front = jax.tree.map(lambda leaf: leaf[0], belt)
            taken = _where(stage == 0, front, arrived)
            result, losses = run_stage(params, taken, jax.random.fold_in(jax.random.fold_in(rng, number), stage))
            moved = _shift(front, axis, num_stages, by=-1)
            back = _where(stage == num_stages - 1, result, moved)
            belt = jax.tree.map(lambda rest, last: jnp.concatenate([rest[1:], last[None]]), belt, back)
            works = (stage <= number) & (number < stage + num_microbatches)
            return (belt, _shift(result, axis, num_stages, by=1)), jax.tree.map(lambda loss: works * loss, losses)

        nothing_yet = jax.tree.map(lambda leaf: leaf[0], belt)
        ticks = jnp.arange(num_microbatches + num_stages - 1)
        (belt, _), losses = jax.lax.scan(tick, (belt, nothing_yet), ticks)
        return belt, jax.tree.map(lambda loss: jax.lax.psum(jnp.sum(loss), axis) / num_microbatches, losses)

    microbatches = jax.tree.map(lambda leaf: leaf.reshape(num_microbatches, -1, *leaf.shape[1:]), batch)
    divided, whole = PartitionSpec(axis), PartitionSpec()
    staged = jax.shard_map(of_stage, in_specs=(divided, divided, whole), out_specs=(divided, whole), axis_names={axis})
    results, losses = staged(params, microbatches, rng)
    return jax.tree.map(lambda leaf, like: leaf.reshape(like.shape), results, batch), losses


def _where(condition: jax.Array, one: Any, other: Any) -> Any:
    return jax.tree.map(lambda *leaves: jnp.where(condition, *leaves), one, other)


def _shift(tree: Any, axis: str, num_stages: int, *, by: int) -> Any:
    ring = [(stage, (stage + by) % num_stages) for stage in range(num_stages)]
    return jax.tree.map(lambda leaf: jax.lax.ppermute(leaf, axis, ring), tree)
