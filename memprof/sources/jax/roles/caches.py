"""KV caches among a step's arguments: arrays that are written at an index and read by attention.

Attention is found by its data flow: a product (queries with keys), an exponential of it (the softmax), and a product of
that with another value (the values). Attention reads the cache itself, a projection of it (the compressed keys and
values of latent attention), or the keys and values that are written into it (a prefill may attend to the prompt's own
keys before it stores them).

Attention may also read keys and values that the step does not write: those from the encoder of an encoder-decoder, or a
prefix that many sequences share. Such a leaf reaches both products without a product in between, and the queries are
made with weights and without the leaf. An encoder's result is different: a product with weights lies between it and its
keys. So is raw data: its attention makes the queries from the same data, or without weights. See `Caches.only_read`.

Example: `cache = cache.at[:, position].set(k)`, then `softmax(q @ cache.T) @ values`. The scatter writes the product
`k` into `cache`; the cache is an operand of the first product, whose exponential weights `values`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from itertools import combinations
from operator import or_
from typing import Any, NamedTuple

from memprof.sources.jax.roles.cache_needs import NO_LINE, Line, Window, line_of, num_copies, window_of


class Held(NamedTuple):
    """The content of a value, as far as attention could read it. Sets of argument leaves and of products are bits.

    Attributes:
        holds: leaves and products whose elements the value holds: moved, cast, rescaled or added.
        made_of: leaves that it is computed from, except those that attention read on the way.
        scored: products that it is computed from, except those before an exponential.
        weighted: products before an exponential.
        counts: it is computed from an iota, as position masks are.
        is_mask: it is a position mask, as booleans or as numbers.
        is_masked: it has been multiplied by a position mask.
        is_quantised: its elements were stored in 8 bits or fewer, and it has not been multiplied by a scale.
        sliced: the shape of the array that it is a slice of.
        line, window, copies: see `cache_needs.py`.
    """

    holds: int = 0
    made_of: int = 0
    scored: int = 0
    weighted: int = 0
    counts: bool = False
    is_mask: bool = False
    is_masked: bool = False
    is_quantised: bool = False
    sliced: tuple[int, ...] = ()
    line: Line = NO_LINE
    window: Window | None = None
    copies: int = 1

    def __or__(self, other: Held) -> Held:
        return Held(
            self.holds | other.holds,
            self.made_of | other.made_of,
            self.scored | other.scored,
            self.weighted | other.weighted,
            self.counts or other.counts,
            self.is_mask and other.is_mask,
            self.is_masked or other.is_masked,
            self.is_quantised and other.is_quantised,
            line=self.line if self.line == other.line else NO_LINE,
            window=self.window if self.window == other.window else None,
            copies=self.copies if self.copies == other.copies else 1,
        )


NOTHING_HELD = Held()

# Operations whose result holds the elements of all operands. Operations that hold only some operands follow below.
_HOLD_ALL = frozenset(
    "concatenate stack tile stop_gradient reshape transpose broadcast_in_dim squeeze expand_dims convert_element_type"
    " bitcast_convert_type rev copy copy_p pvary reshard mesh_cast layout_constraint device_put sharding_constraint pad"
    " mul div add sub and or shift_left shift_right_logical shift_right_arithmetic"
    " reduce_precision round clamp neg abs max min reduce_max".split()  # the last ones quantise
)
# Operations that keep a value in its place, or move all of it.
_MOVES = frozenset(
    "stop_gradient reshape transpose broadcast_in_dim squeeze expand_dims convert_element_type rev copy copy_p pvary"
    " reshard device_put sharding_constraint reduce_precision".split()
)
_MOVES_AND_COPIES = _MOVES | {"tile"}
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_SUMS = frozenset({"add", "add_any", "sub", "or"})
_SLICES = frozenset({"slice", "split", "dynamic_slice"})
_HOLD_FIRST = _SLICES | {"unstack", "gather"}
_KEEP_A_MASK = _MOVES | _HOLD_FIRST | {"mul", "sub", "and", "or", "not", "select_n"}
_KEEP_A_WINDOW = _MOVES | {"and", "add", "select_n"}
_EXPONENTIALS = frozenset({"exp", "exp2"})
_PRODUCT = "dot_general"


class _Product(NamedTuple):
    """The operands of a product, and whether it has a batch axis."""

    left: Held
    right: Held
    is_along: bool


class Caches:
    """The values that attention reads and the values written at an index, collected on a walk through a program."""

    def __init__(self) -> None:
        self._products: dict[int, tuple[int, Any]] = {}
        self._operands: dict[int, _Product] = {}  # by the bit of the product
        self._attentions: set[tuple[int, int, bool]] = set()  # products before the softmax, values, is_along
        self._read_by_kernels = 0
        self._kernels: set[tuple[Held, int]] = set()  # queries, and the kernel's operands of their head size
        self._writes: set[tuple[int, int]] = set()
        self._copies: defaultdict[int, set[int]] = defaultdict(set)  # of what is written, by the target
        self._windows: defaultdict[int, set[Window]] = defaultdict(set)  # by the products before the softmax
        self._first_product = 0

    def start(self, num_leaves: int) -> None:
        """Begin the walk with this many argument leaves. Products use the bits after theirs."""
        self._first_product = num_leaves

    def leaves(self) -> int:
        """Return the leaves that are written at an index and read by attention, as bits."""
        read = self._read_by_kernels
        for scored, values, _ in self._attentions:
            read |= values | self._held_by_operands(scored)
        projected = read | self._held_by_operands(read)
        found = 0
        for target, update in self._writes:
            if update & read or target & projected & self._all_leaves:
                found |= target
        return found & self._all_leaves

    def only_read(self, weights: int) -> int:
        """Return the leaves that attention reads as keys and values, written or not, as bits, without query sources.

        Args:
            weights: the parameter leaves; queries must be made with some of them.
        """
        reads = {(queries, held, held) for queries, held in self._kernels}
        for scored, values, is_along in self._attentions:
            for left, right, are_scores_along in map(self._operands.__getitem__, self._bits(scored)):
                if is_along and are_scores_along:  # batched over sequences or heads; a codebook is not
                    reads |= {(left, right.holds, values), (right, left.holds, values)}
        found = 0
        for queries, keys, values in reads:
            keys, values = (held & ~queries.made_of & self._all_leaves for held in (keys, values))
            if keys and values and self._held_by_operands(queries.holds) & weights:
                found |= keys | values
        return found

    def copies_in(self, leaf: int) -> int:
        """Return how many equal copies of each head are written into a leaf, given as a bit."""
        found: set[int] = set()
        for target, copies in self._copies.items():
            found |= copies if target & leaf else set()
        return found.pop() if len(found) == 1 else 1

    def window_of(self, leaf: int) -> Window | None:
        """Return the window of all attentions that read a leaf, given as a bit; None: one of them reads everything."""
        found: set[Window | None] = set()
        for scored, values, _ in self._attentions:
            if leaf & (values | self._held_by_operands(scored)):
                windows = self._windows.get(scored, set())
                found.add(max(windows) if windows else None)
        return None if None in found or self._read_by_kernels & leaf else max(filter(None, found), default=None)

    @property
    def _all_leaves(self) -> int:
        return (1 << self._first_product) - 1

    def _held_by_operands(self, products: int) -> int:
        held = 0
        for product in self._bits(products):
            left, right, _ = self._operands[product]
            held |= left.holds | right.holds
        return held

    def _bits(self, products: int) -> list[int]:
        return [product for product in self._operands if product & products]

    def of_result(self, equation: Any, operands: Sequence[Held]) -> Held:
        """Return the content of an operation's results."""
        name = equation.primitive.name
        if name == _PRODUCT:
            return self._product(equation, *operands)
        everything = reduce(or_, operands) if operands else Held(counts=name == "iota")
        if "attention" in name or (name == "pallas_call" and "attention" in str(equation.params.get("name", ""))):
            self._kernel(equation, operands)  # only its name shows that it is attention
            return Held(holds=self._bit(equation))
        if name in _EXPONENTIALS:
            weighted = everything.scored | everything.weighted
            return Held(made_of=0 if weighted else everything.made_of, weighted=weighted)
        return everything._replace(
            holds=self._holds(equation, operands),
            is_mask=self._is_mask(name, operands),
            is_masked=_is_masked(name, operands),
            is_quantised=_is_quantised(equation, operands),
            sliced=equation.invars[0].aval.shape if name in _SLICES else (),
            line=line_of(equation, [each.line for each in operands]),
            window=self._window(equation, operands, everything),
            copies=self._num_copies(equation, operands),
        )

    def _window(self, equation: Any, operands: Sequence[Held], everything: Held) -> Window | None:
        """Return the window of a mask. Where a mask meets scores, record it for them."""
        name = equation.primitive.name
        if name in _COMPARISONS:
            return window_of(equation, [each.line for each in operands])
        if name not in _KEEP_A_WINDOW:
            return None
        windows = [each.window for each in operands if each.window is not None]
        is_choice = name == "select_n" and operands[0].window is None  # then all choices must have a window
        if not windows or (is_choice and len(windows) < len(operands) - 1):
            return None
        if everything.scored:
            self._windows[everything.scored].add(min(windows))
            return None
        return min(windows)

    @staticmethod
    def _num_copies(equation: Any, operands: Sequence[Held]) -> int:
        is_moved = equation.primitive.name in _MOVES_AND_COPIES and operands[0].holds
        return operands[0].copies * num_copies(equation) if is_moved else 1

    def _kernel(self, equation: Any, operands: Sequence[Held]) -> None:
        shapes = [getattr(atom.aval, "shape", ()) for atom in equation.invars]
        for queries, shape in zip(operands, shapes, strict=True):
            self._read_by_kernels |= queries.holds
            if len(shape) > 2 and queries.holds > self._all_leaves:
                of_head = (held.holds for held, other in zip(operands, shapes, strict=True) if other[-1:] == shape[-1:])
                self._kernels.add((queries, reduce(or_, of_head)))

    def _product(self, equation: Any, left: Held, right: Held) -> Held:
        is_along = bool(equation.params["dimension_numbers"][1][0])
        product = self._bit(equation)
        before = self._operands.get(product, _Product(NOTHING_HELD, NOTHING_HELD, is_along))
        self._operands[product] = _Product(before.left | left, before.right | right, is_along)
        made_of = left.made_of | right.made_of
        for one, other in ((left, right), (right, left)):
            # Attention weights hold no elements themselves, unlike a state that decays exponentially. They may hold the
            # scales of quantised values.
            if one.weighted and (not one.holds or other.is_quantised):
                self._attentions.add((one.weighted, other.holds | one.holds, is_along))
                made_of = 0
            if one.is_mask:  # a product with a one-hot mask moves the other operand
                return Held(holds=other.holds | product, made_of=made_of, scored=product, is_masked=True)
        return Held(holds=product, made_of=made_of, scored=product)

    def _holds(self, equation: Any, operands: Sequence[Held]) -> int:
        name = equation.primitive.name
        if name.startswith("scatter"):
            return self._written(operands[0], operands[2], operands[2].copies)
        if name == "dynamic_update_slice":
            return self._written(operands[0], operands[1], operands[1].copies)
        if name == "select_n" and len(operands) == 3:
            # A position mask can also write a position. A sampler that accepts a state has no such mask.
            return self._mixed(operands[1:]) if _is_counter(operands[0]) else operands[1].holds | operands[2].holds
        if name == "concatenate" and any(each.sliced == equation.outvars[0].aval.shape for each in operands):
            return self._mixed(operands)  # a sliding window: it drops elements at one end and appends at the other
        if name in _SUMS and any(each.is_masked for each in operands):
            return self._mixed(operands)  # `cache + one_hot * new`
        if name in _HOLD_FIRST:
            return operands[0].holds
        holds = 0
        if name in _HOLD_ALL:
            for each in operands:
                holds |= each.holds
        return holds

    def _written(self, target: Held, update: Held, copies: int = 1) -> int:
        if target.holds:
            self._writes.add((target.holds, update.holds))
            self._copies[target.holds].add(copies)
        return target.holds | update.holds

    def _mixed(self, operands: Sequence[Held]) -> int:
        """Return what several values hold together. Record that each may be written into any other."""
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

    @staticmethod
    def _is_mask(name: str, operands: Sequence[Held]) -> bool:
        """Whether a result is a position mask: a comparison of positions, or computed from such masks alone."""
        if name in _COMPARISONS:
            return any(map(_is_counter, operands))
        operands = operands[:1] if name in _HOLD_FIRST else operands
        masks = [each for each in operands if each.is_mask]
        return name in _KEEP_A_MASK and bool(masks) and all(each.is_mask or each == NOTHING_HELD for each in operands)


def _is_counter(held: Held) -> bool:
    return held.counts and not held.holds


def _is_quantised(equation: Any, operands: Sequence[Held]) -> bool:
    """Whether a result is a cast of integers or floats of at most 8 bits, moved or not."""
    name = equation.primitive.name
    if name == "convert_element_type" and operands[0].holds:
        before, after = (atom.aval.dtype for atom in (equation.invars[0], equation.outvars[0]))
        return operands[0].is_quantised or (before.itemsize == 1 < after.itemsize and before.kind != "b")
    return name in _MOVES | _HOLD_FIRST and operands[0].is_quantised


def _is_masked(name: str, operands: Sequence[Held]) -> bool:
    """Whether a result has been multiplied by a position mask, now or before it was moved."""
    if name == "mul":
        return any(each.is_mask for each in operands) and any(each.holds for each in operands)
    return name in _MOVES and operands[0].is_masked
