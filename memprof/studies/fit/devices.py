"""Find the smallest number of devices on which a step fits, by doubling or halving a given number.

On n devices, divided arrays use b/n bytes on each, and replicated arrays use the same a bytes on all. One footprint
gives a first estimate, as if all arrays were divided; two footprints give a and b. So the search seldom compiles for
more than four numbers. It ends when a number fits, and its half either does not fit or cannot be compiled for.

    find_fewest({2: 90, 4: 50, 8: 30}.__getitem__, numbers=(2, 4, 8), start=8, budget_bytes=60)      # 4
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from memprof.analysis.records.capture import Target
from memprof.errors import MemprofError
from memprof.sources.jax.targets.resolve import LocalDevice, topology_of
from memprof.studies.fit.search import NothingFitsError

_MAX_DEVICES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Fewest:
    """The result of a search.

    Attributes:
        number: a number that fits.
        below: the number before it, which does not fit; None if the step cannot be compiled for that number.
        refusal: the reason why it cannot be compiled; empty if `number` is the first number.
    """

    number: int
    below: int | None
    refusal: str = ""


def of_devices(target: Target | LocalDevice, num_devices: int) -> Target | LocalDevice:
    """Return the target with another number of devices: the first axis of its mesh and the number of hosts are scaled.

    Raises:
        MemprofError: the devices cannot be divided evenly among the hosts.
    """
    topology = target.topology
    axes = dict(topology.axes) or {"": topology.num_devices}
    first = next(iter(axes))
    axes[first] = num_devices * axes[first] // topology.num_devices
    hosts = max(1, topology.num_hosts * num_devices // topology.num_devices)
    return replace(target, topology=topology_of(axes, hosts))


def numbers_of_devices(start: int, *, unit: int = 1, least: int = 1) -> tuple[int, ...]:
    """Return the numbers to choose from, smallest first.

    Args:
        start: one of the numbers.
        unit: common divisor of the numbers: the number of devices along the fixed axes.
        least: lower bound of the smallest number.
    """
    smallest = start
    while smallest % (2 * unit) == 0 and smallest // 2 >= least:
        smallest //= 2
    numbers = [smallest]
    while 2 * numbers[-1] <= max(_MAX_DEVICES, start):
        numbers.append(2 * numbers[-1])
    return tuple(numbers)


def find_fewest(measure: Callable[[int], int], *, numbers: Sequence[int], start: int, budget_bytes: int) -> Fewest:
    """Return the smallest number whose footprint is within the budget.

    The search assumes that the footprint of one device does not grow with the number of devices.

    Args:
        measure: maps a number of devices to the footprint of one of them, in bytes. Called once for each number; it
            raises a `MemprofError` if the step cannot be compiled for that number.
        start: the number to start at.

    Raises:
        NothingFitsError: the largest number is too small.
        MemprofError: the step cannot be compiled for the first number.
    """
    sizes: dict[int, int] = {}
    low, high = 0, len(numbers) - 1  # between these positions, both included, the answer is open
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
            f"not even {max(sizes)} devices are enough: each needs {sizes[max(sizes)]:,} bytes{more}"
        )
    before = numbers[max(numbers.index(fitting) - 1, 0)]
    below = before if before in sizes and before != fitting else None
    return Fewest(number=fitting, below=below, refusal="" if below is not None else refusal)


def _position(numbers: Sequence[int], sizes: dict[int, int], budget_bytes: int) -> int:
    """Return the first number that should fit, estimated from the two measurements nearest to the budget."""
    one, *others = sorted(sizes, key=lambda number: abs(sizes[number] - budget_bytes))
    divided, replicated = float(one * sizes[one]), 0.0
    if others:
        other = others[0]
        divided = (sizes[one] - sizes[other]) / (1 / one - 1 / other)
        replicated = sizes[one] - divided / one
    if divided <= 0:  # more devices don't lower the footprint
        return 0 if sizes[one] <= budget_bytes else len(numbers) - 1
    fitting = (place for place, number in enumerate(numbers) if replicated + divided / number <= budget_bytes)
    return next(fitting, len(numbers) - 1)
