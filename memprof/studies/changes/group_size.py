"""The size of groups of iterations or layers under another checkpoint.

A scan of L iterations saves its carry L times, or what the backward pass needs of it, and L layers in sequence save the
input of each one. In groups of g, L / g of these are saved, and while the backward pass goes through a group, those of
g iterations and what they keep besides. Each group is computed once more for that. (Chen et al., "Training Deep Nets
with Sublinear Memory Cost", 2016, section 4.)
"""

from __future__ import annotations

from math import isqrt

_NEAR = 2  # how much larger or smaller a divisor of the number of iterations may be than the best size


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
