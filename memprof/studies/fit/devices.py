"""The smallest number of devices on which a step fits, doubled or halved from the one that is given.

What is divided over n devices takes b/n on each of them, and what is replicated takes the same a on all. One footprint
says where to look if all were divided, two tell a and b: so the search seldom compiles more than four numbers. It ends
when a number fits and its half does not, or is none that the step can be compiled for.

    find_fewest({2: 90, 4: 50, 8: 30}.__getitem__, numbers=(2, 4, 8), start=8, budget_bytes=60)      # 4
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from memprof.analysis.records.capture import Target
from memprof.errors import MemprofError
from memprof.sources.jax.targets.resolve import topology_of
from memprof.studies.fit.search import NothingFitsError

_MOST_DEVICES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Fewest:
    """What a search found.

    Attributes:
        number: it fits.
        below: the number before it, which does not; None where there is none that the step can be compiled for.
        refusal: why there is none, where that is not since `number` is the first.
    """

    number: int
    below: int | None
    refusal: str = ""


def of_devices(target: Target, num_devices: int) -> Target:
    """The target with another number of devices: the first axis of its mesh grows or shrinks, and its hosts with it.

    Raises:
        MemprofError: they cannot be shared out evenly over the hosts.
    """
    topology = target.topology
    axes = dict(topology.axes) or {"": topology.num_devices}
    first = next(iter(axes))
    axes[first] = num_devices * axes[first] // topology.num_devices
    hosts = max(1, topology.num_hosts * num_devices // topology.num_devices)
    return replace(target, topology=topology_of(axes, hosts))


def numbers_of_devices(start: int, *, unit: int = 1, least: int = 1) -> tuple[int, ...]:
    """The numbers to choose from, smallest first.

    Args:
        start: one of them.
        unit: all are multiples of it: the devices of the axes that are not varied.
        least: the smallest that there may be.
    """
    smallest = start
    while smallest % (2 * unit) == 0 and smallest // 2 >= least:
        smallest //= 2
    numbers = [smallest]
    while 2 * numbers[-1] <= max(_MOST_DEVICES, start):
        numbers.append(2 * numbers[-1])
    return tuple(numbers)


def find_fewest(measure: Callable[[int], int], *, numbers: Sequence[int], start: int, budget_bytes: int) -> Fewest:
    """The smallest number whose footprint is within the budget, taking for granted that more devices take no more each.

    Args:
        measure: the footprint of one device of a number of them, in bytes. Called once for each; it raises a
            `MemprofError` where the step cannot be compiled for that number.
        start: where to begin.

    Raises:
        NothingFitsError: the largest number is too small.
        MemprofError: the step cannot be compiled for the first number.
    """
    sizes: dict[int, int] = {}
    low, high = 0, len(numbers) - 1  # between these positions, both included, it is not known yet
    fitting: int | None = None
    at, refusal, is_refused_above = numbers.index(start), "", False
    while low <= high:
        number = numbers[at]
        try:
            sizes[number] = measure(number)
        except MemprofError as error:
            if not sizes:
                raise
            refusal = str(error)
            is_refused_above = fitting is None
            low, high = (low, at - 1) if is_refused_above else (at + 1, high)
        else:
            if sizes[number] <= budget_bytes:
                fitting, high = number, at - 1
            else:
                low = at + 1
        at = min(max(_position(numbers, sizes, budget_bytes), low), high)
    if fitting is None:
        more = f"; {refusal.rstrip('.')}" if is_refused_above else ""
        raise NothingFitsError(
            f"not even {max(sizes)} devices are enough: each takes {sizes[max(sizes)]:,} bytes{more}"
        )
    before = numbers[max(numbers.index(fitting) - 1, 0)]
    below = before if before in sizes and before != fitting else None
    return Fewest(number=fitting, below=below, refusal="" if below is not None else refusal)


def _position(numbers: Sequence[int], sizes: dict[int, int], budget_bytes: int) -> int:
    """The first number that should fit, by what the nearest of those that were measured take."""
    one, *others = sorted(sizes, key=lambda number: abs(sizes[number] - budget_bytes))
    divided, replicated = float(one * sizes[one]), 0.0
    if others:
        other = others[0]
        divided = (sizes[one] - sizes[other]) / (1 / one - 1 / other)
        replicated = sizes[one] - divided / one
    if divided <= 0:  # more devices change nothing
        return 0 if sizes[one] <= budget_bytes else len(numbers) - 1
    fitting = (place for place, number in enumerate(numbers) if replicated + divided / number <= budget_bytes)
    return next(fitting, len(numbers) - 1)
