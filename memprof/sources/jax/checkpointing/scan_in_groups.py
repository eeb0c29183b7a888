"""A scan with a checkpoint around each group of iterations, so that it keeps one carry per group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from memprof.analysis.records.checkpoints import enough_for_groups


def scan_in_groups(
    body: Callable[..., tuple[Any, Any]],
    init: Any,
    xs: Any,
    *,
    length: int,
    size: int,
    reverse: bool = False,
    **options: Any,
) -> tuple[Any, Any]:
    """Compute the results of `jax.lax.scan` with a checkpoint around each group of iterations.

    Iterations that are left over run last, outside the groups. A scan of fewer than two groups has none.

    Args:
        body, init, xs, length, reverse, options: as for `jax.lax.scan`.
        size: number of iterations in a group.
    """

    def scan(init: Any, xs: Any, length: int) -> tuple[Any, Any]:
        carry, results = jax.lax.scan(body, init, xs, length, reverse, **options)
        return carry, results

    if not enough_for_groups(length, size):
        return scan(init, xs, length)
    num_groups, num_rest = divmod(length, size)
    start = num_rest if reverse else 0
    stop = start + num_groups * size
    groups = jax.tree.map(lambda each: each[start:stop].reshape(num_groups, size, *each.shape[1:]), xs)
    group = jax.checkpoint(lambda carry, rows: scan(carry, rows, size), prevent_cse=False)
    carry, results = jax.lax.scan(group, init, groups, num_groups, reverse)
    results = jax.tree.map(lambda each: each.reshape(num_groups * size, *each.shape[2:]), results)
    if not num_rest:
        return carry, results
    carry, rest = scan(carry, jax.tree.map(lambda each: each[:start] if reverse else each[stop:], xs), num_rest)
    parts = (rest, results) if reverse else (results, rest)
    return carry, jax.tree.map(lambda *each: jnp.concatenate(each), *parts)
