"""The size of groups of iterations or layers under another checkpoint, and the code for scans.

A scan of L iterations saves its carry L times, or what the backward pass needs of it, and L layers in sequence save the
input of each one. In groups of g, L / g of these are saved, and while the backward pass goes through a group, those of
g iterations and what they keep besides. Each group is computed once more for that. (Chen et al., "Training Deep Nets
with Sublinear Memory Cost", 2016, section 4.)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

IMPORTS = "import jax\nimport jax.numpy as jnp\n"
_NEAR = 2  # how much larger or smaller a divisor of the number of iterations may be than the best size
_SCAN = """
def scan_in_groups(body, init, xs=None, length=None, reverse=False, **options):
    \"\"\"jax.lax.scan with a checkpoint around each iteration, and another one around each group of {size}.\"\"\"
    body = jax.checkpoint(body{options}, prevent_cse=False)

    def scan(init, xs, length):
        return jax.lax.scan(body, init, xs, length, reverse, **options)

    length = len(jax.tree.leaves(xs)[0]) if length is None else length
    if length < {twice}:
        return scan(init, xs, length)
    num_groups, num_rest = divmod(length, {size})
    start = num_rest if reverse else 0
    stop = start + num_groups * {size}
    groups = jax.tree.map(lambda each: each[start:stop].reshape(num_groups, {size}, *each.shape[1:]), xs)
    group = jax.checkpoint(lambda carry, rows: scan(carry, rows, {size}), prevent_cse=False)
    carry, results = jax.lax.scan(group, init, groups, num_groups, reverse)
    results = jax.tree.map(lambda each: each.reshape(num_groups * {size}, *each.shape[2:]), results)
    if not num_rest:
        return carry, results
    carry, rest = scan(carry, jax.tree.map(lambda each: each[:start] if reverse else each[stop:], xs), num_rest)
    parts = (rest, results) if reverse else (results, rest)
    return carry, jax.tree.map(lambda *each: jnp.concatenate(each), *parts)


# Call scan_in_groups in place of jax.lax.scan for {bodies}, without any checkpoint that is there.
# For a scan of a framework (nn.scan, nnx.scan, hk.scan), use memprof.apply(plan), with the plan of memprof.plan.
"""


def best_group_size(count: int, carried_bytes: int, kept_bytes: int = 0) -> int | None:
    """Return the g for which L / g carries, and the carries and results of g iterations, are smallest; None below 2.

    A divisor of L is preferred, because iterations that are left over take a copy of the arrays that the scan reads.

    Args:
        count: L, the number of iterations or layers.
        carried_bytes: size of what each one passes on to the next.
        kept_bytes: size of the other results that each one keeps.
    """
    size = isqrt(count * carried_bytes // max(carried_bytes + kept_bytes, 1))
    if size < 2:
        return None
    divisors = (each for each in range(max(size // _NEAR, 2), _NEAR * size + 1) if count % each == 0)
    return min(divisors, key=lambda each: max(each / size, size / each), default=size)


def code_of(size: int, places: Sequence[str], options: str = "") -> str:
    """Return code that replaces the scans of some bodies.

    Args:
        options: of the checkpoint around each iteration, such as `, policy=my_policy`.
    """
    return _SCAN.format(size=size, twice=2 * size, options=options, bodies=", ".join(places) or "the body of the scan")
