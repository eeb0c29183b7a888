"""Which arguments of a step are a cache of keys and values: written at an index, and read by attention.

Attention is found by its data flow: a product (queries with keys), an exponential of it (the softmax), and a product of
that with another value (the values). Either the cache itself is read there, or a projection of it (the compressed keys
and values of latent attention), or the keys and values that are written into it (a prefill may attend to the prompt's
own keys before it stores them).

Beside such a cache, attention may read keys and values that the step does not write: those that the encoder of an
encoder-decoder has made, or a prefix that many sequences share. They are found by `constants`.

Example: `cache = cache.at[:, position].set(k)`, then `softmax(q @ cache.T) @ values`. The scatter writes the product
`k` into `cache`; the cache is an operand of the first product, whose exponential weights `values`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple


class Held(NamedTuple):
    """What attention could read in a value. Sets of argument leaves and of results of products, as bits.

    Attributes:
        holds: those whose elements the value holds: moved, cast, rescaled or added.
        scored: what the operands of the products hold that the value is computed from.
        weighted: what was `scored` before an exponential.
        counts: it is computed from an iota, as a mask of positions is.
        sliced: the shape of the array that it is a slice of.
    """

    holds: int = 0
    scored: int = 0
    weighted: int = 0
    counts: bool = False
    sliced: tuple[int, ...] = ()

    def __or__(self, other: Held) -> Held:
        return Held(
            self.holds | other.holds,
            self.scored | other.scored,
            self.weighted | other.weighted,
            self.counts or other.counts,
        )


NOTHING_HELD = Held()

# Operations whose result holds the elements of all operands, and those of which only some operands are such.
_HOLD_ALL = frozenset(
    "concatenate stack tile stop_gradient reshape transpose broadcast_in_dim squeeze expand_dims convert_element_type"
    " bitcast_convert_type rev copy copy_p pvary reshard mesh_cast layout_constraint device_put sharding_constraint pad"
    " mul div add sub and or shift_left shift_right_logical shift_right_arithmetic"
    " reduce_precision round clamp neg abs max min reduce_max".split()  # the last ones quantise
)
_SUMS = frozenset({"add", "add_any"})
_SLICES = frozenset({"slice", "split", "dynamic_slice"})
_HOLD_FIRST = _SLICES | {"unstack", "gather"}
_EXPONENTIALS = frozenset({"exp", "exp2"})
_PRODUCT = "dot_general"


class Caches:
    """What attention reads, and what is written at an index, on a walk through a program."""

    def __init__(self) -> None:
        self._products: dict[int, tuple[int, Any]] = {}
        self._operands: dict[int, int] = {}  # of each product, by its bit: what they hold
        self._read = 0
        self._values: set[int] = set()  # what it reads as values of each sequence or head
        self._writes: set[tuple[int, int]] = set()
        self._first_product = 0

    def start(self, num_leaves: int) -> None:
        """The walk begins, with that many argument leaves: the bits after theirs are for products."""
        self._first_product = num_leaves

    def leaves(self) -> int:
        """The leaves that are written at an index and hold what attention reads, as bits."""
        projected = self._read
        for product, operands in self._operands.items():
            projected |= operands if product & self._read else 0
        all_leaves = (1 << self._first_product) - 1
        found = 0
        for target, update in self._writes:
            if update & self._read or target & projected & all_leaves:
                found |= target
        return found & all_leaves

    def constants(self) -> tuple[int, int]:
        """The leaves that attention reads, and those of them that it reads as values as they are, as bits."""
        leaves = (1 << self._first_product) - 1
        written = 0
        for target, _ in self._writes:
            written |= target & leaves
        constants = 0
        for held in self._values:
            constants |= held if not held & ~leaves and not held & written else 0
        return self._read & leaves, constants

    def of_result(self, equation: Any, operands: Sequence[Held]) -> Held:
        """What the results of an operation hold."""
        name = equation.primitive.name
        if name == _PRODUCT:
            return self._product(equation, *operands)
        if "attention" in name or (name == "pallas_call" and "attention" in str(equation.params.get("name", ""))):
            for each in operands:
                self._read |= each.holds  # a kernel, which says by its name alone what it does
            return Held(holds=self._bit(equation))
        everything = Held(counts=name == "iota")
        for each in operands:
            everything |= each
        if name in _EXPONENTIALS:
            return Held(weighted=everything.scored | everything.weighted)
        sliced = equation.invars[0].aval.shape if name in _SLICES else ()
        return everything._replace(holds=self._holds(equation, operands), sliced=sliced)

    def _product(self, equation: Any, left: Held, right: Held) -> Held:
        for one, other in ((left, right), (right, left)):
            # The weights of attention hold no elements themselves, as a state that decays exponentially does.
            if one.weighted and not one.holds:
                self._read |= one.weighted | other.holds
                self._values |= {other.holds} if equation.params["dimension_numbers"][1][0] else set()
            if one.counts and not one.holds and not one.weighted:
                return Held(holds=other.holds | self._bit(equation), scored=other.holds, counts=True)  # a one-hot mask
        product, operands = self._bit(equation), left.holds | right.holds
        self._operands[product] = self._operands.get(product, 0) | operands
        return Held(holds=product, scored=operands)

    def _holds(self, equation: Any, operands: Sequence[Held]) -> int:
        name = equation.primitive.name
        if name.startswith("scatter"):
            return self._written(operands[0], operands[2])
        if name == "dynamic_update_slice":
            return self._written(operands[0], operands[1])
        if name == "select_n" and len(operands) == 3:
            # A position can be written by a mask of positions, too. A sampler that accepts a state has no such mask.
            is_of_positions = operands[0].counts and not operands[0].holds
            return self._mixed(operands[1:]) if is_of_positions else operands[1].holds | operands[2].holds
        if name == "concatenate" and any(each.sliced == equation.outvars[0].aval.shape for each in operands):
            return self._mixed(operands)  # a window that moves on: what is cut off at one end comes in at the other
        if name in _SUMS and any(each.counts for each in operands):
            return self._mixed(operands)  # `cache + one_hot * new`
        if name in _HOLD_FIRST:
            return operands[0].holds
        holds = 0
        if name in _HOLD_ALL:
            for each in operands:
                holds |= each.holds
        return holds

    def _written(self, target: Held, update: Held) -> int:
        if target.holds:
            self._writes.add((target.holds, update.holds))
        return target.holds | update.holds

    def _mixed(self, operands: Sequence[Held]) -> int:
        """What several values together hold, either of which may be written into the other."""
        holds = 0
        for each in operands:
            holds |= each.holds
        for one, other in combinations(operands, 2):
            self._written(one, other)
            self._written(other, one)
        return holds

    def _bit(self, equation: Any) -> int:
        number, _ = self._products.setdefault(id(equation), (len(self._products), equation))
        return 1 << self._first_product + number
