"""Attentions that a fused kernel can compute: softmax(scale * query @ key + bias, where allowed) @ value.

They are found by data flow. Each axis of an array has labels: those of the axes of queries, keys and values that it is
made of. So the order of axes is free, heads may be axes of `vmap`, and groups of query heads may share keys. An
attention with other operations, such as dropout of its probabilities, is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from memprof.analysis.records.rewrites import FusedAttention
from memprof.sources.jax.checkpointing.constants import Constants
from memprof.sources.jax.checkpointing.evaluation import value_of
from memprof.sources.jax.checkpointing.layers import of_user
from memprof.sources.jax.checkpointing.parts import with_parts
from memprof.sources.jax.tracing import jit_adapter

_MASKED = -1e4  # masked scores are at most this
_NARROW = ("bfloat16", "float16")
_MAX_WIDTH = 128  # of heads; JAX allows 256 on a Hopper, but sees one only where the device itself exists
_SAME = frozenset({"convert_element_type", "copy", "name", "stop_gradient"})

Labels = tuple[int, ...]
Axes = tuple[Labels, ...]  # of each axis; an axis of length 1, or along which values repeat, has none


class _Stage(Enum):
    SCORES = auto()
    SHIFT = auto()  # a number for each query, such as the maximum of its scores
    WEIGHTS = auto()  # exp of scores, with or without a shift
    SUM = auto()  # of the weights of a query
    PROBABILITIES = auto()
    ATTENDED = auto()  # weights @ value, still to be divided by their sum
    RESULT = auto()


@dataclass(frozen=True, slots=True)
class _Value:
    stage: _Stage
    axes: Axes


@dataclass(frozen=True, slots=True)
class _Operand:
    """An array beside the scores: a mask or a bias.

    Attributes:
        is_negated: whether a mask is True where attention is not allowed, or a bias is subtracted.
    """

    atom: Any
    axes: Axes
    is_negated: bool = False


class _OtherError(Exception):
    """The operations are not those of an attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """An attention of a function.

    Attributes:
        own: the numbers of its equations.
        query, key, value: the arrays that it reads, in 16 bits.
        sizes: the length of each label.
        batch, group: the labels of examples and heads, and of the query heads that share keys.
        queries, keys: the labels of tokens.
        result: the variable that it makes.
        place: the file and line of its first product.
    """

    own: frozenset[int]
    query: _Operand
    key: _Operand
    value: _Operand
    scale: float
    is_causal: bool
    masks: tuple[_Operand, ...]
    biases: tuple[_Operand, ...]
    sizes: dict[int, int]
    batch: Labels
    group: Labels
    queries: int
    keys: int
    result: _Operand
    place: tuple[str, int] | None

    @property
    def reads(self) -> list[Any]:
        """The variables from outside that it reads."""
        every = (self.query, self.key, self.value, *self.masks, *self.biases)
        return [each.atom for each in every if isinstance(each.atom, core.Var)]

    @property
    def probability_bytes(self) -> int:
        """The size of its probabilities in the dtype of the queries."""
        return prod(map(self.sizes.get, (*self.batch, *self.group, self.queries, self.keys))) * 2  # type: ignore[arg-type]

    @property
    def dtype(self) -> str:
        """The dtype of the queries."""
        return str(self.query.atom.aval.dtype)

    @property
    def call(self) -> str:
        """The call of JAX's function that computes it, with the names of its arrays."""
        options = {
            "mask": "mask" if self.masks else "",
            "bias": "bias" if self.biases else "",
            "scale": f"{self.scale:.6g}",
            "is_causal": "True" if self.is_causal else "",
        }
        given = "".join(f", {name}={value}" for name, value in options.items() if value)
        return f'jax.nn.dot_product_attention(q, k, v{given}, implementation="cudnn")'

    def attended(self, known: dict[Any, Any], implementation: str) -> Any:
        """Return the result of the attention by JAX's function."""
        first, heads = self.batch[:1], self.batch[1:]
        of_queries = (first, (self.queries,), (*heads, *self.group))
        mask = [self._beside(each, known) for each in self.masks]
        masks = [~array if each.is_negated else array for each, array in zip(self.masks, mask, strict=True)]
        bias = [self._beside(each, known) for each in self.biases]
        biases = [-array if each.is_negated else array for each, array in zip(self.biases, bias, strict=True)]
        dtype = self.query.atom.aval.dtype
        found = jax.nn.dot_product_attention(
            self._array(self.query, known, (*of_queries, self._width(self.query))),
            self._array(self.key, known, (first, (self.keys,), heads, self._width(self.key))),
            self._array(self.value, known, (first, (self.keys,), heads, self._width(self.value))),
            bias=sum(biases[1:], start=biases[0]).astype(dtype) if biases else None,
            mask=_all_of(masks),
            scale=self.scale,
            is_causal=self.is_causal,
            implementation=implementation,
        )
        order = (*first, self.queries, *heads, *self.group, *self._width(self.value))
        flat = found.reshape([self.sizes[label] for label in order])
        wanted = [label for axis in self.result.axes for label in axis]
        aval = self.result.atom.aval
        return jnp.transpose(flat, [order.index(label) for label in wanted]).reshape(aval.shape).astype(aval.dtype)

    def _width(self, operand: _Operand) -> Labels:
        tokens = (*self.batch, *self.group, self.queries, self.keys)
        return tuple(label for axis in operand.axes for label in axis if label not in tokens)

    def _array(self, operand: _Operand, known: dict[Any, Any], axes: Sequence[Labels]) -> Any:
        """Return an array with its axes in another order, several merged into one."""
        labels = [label for axis in operand.axes for label in axis]
        flat = value_of(operand.atom, known).reshape([self.sizes[label] for label in labels])
        wanted = [label for axis in axes for label in axis]
        moved = jnp.transpose(flat, [labels.index(label) for label in wanted])
        return moved.reshape([prod(self.sizes[label] for label in axis) for axis in axes])

    def _beside(self, operand: _Operand, known: dict[Any, Any]) -> Any:
        """Return a mask or a bias as (batch or 1, heads or 1, queries, keys)."""
        labels = [label for axis in operand.axes for label in axis]
        axes = (self.batch[:1], (*self.batch[1:], *self.group), (self.queries,), (self.keys,))
        flat = value_of(operand.atom, known).reshape([self.sizes[label] for label in labels])
        present = [label for axis in axes for label in axis if label in labels]
        array = jnp.transpose(flat, [labels.index(label) for label in present])
        array = array.reshape([self.sizes[label] if label in labels else 1 for axis in axes for label in axis])
        is_whole = [set(axis) & set(labels) or number > 1 for number, axis in enumerate(axes)]
        shape = [
            self.sizes[label] if whole else 1 for whole, axis in zip(is_whole, axes, strict=True) for label in axis
        ]
        merged = [
            prod(self.sizes[each] for each in axis) if whole else 1 for whole, axis in zip(is_whole, axes, strict=True)
        ]
        return jnp.broadcast_to(array, shape).reshape(merged)


def _all_of(masks: Sequence[Any]) -> Any:
    if not masks:
        return None
    found = masks[0]
    for each in masks[1:]:
        found = jnp.logical_and(found, each)
    return found


@contextmanager
def fused(how: FusedAttention) -> Iterator[list[Attention]]:
    """Compute the attentions of all functions that are differentiated within a `with` block by JAX's function.

    Yields:
        The attentions that were found.
    """
    found: list[Attention] = []

    def find(jaxpr: core.Jaxpr, constants: Constants) -> list[_Fused]:
        own = find_attentions(jaxpr, constants)
        found.extend(own)
        return [_Fused(attention=each, implementation=how.implementation) for each in own]

    with with_parts(find):
        yield found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fused:
    attention: Attention
    implementation: str

    @property
    def own(self) -> frozenset[int]:
        return self.attention.own

    @property
    def reads(self) -> list[Any]:
        return self.attention.reads

    def evaluate(self, _: core.Jaxpr, known: dict[Any, Any]) -> None:
        known[self.attention.result.atom] = self.attention.attended(known, self.implementation)


def find_attentions(jaxpr: core.Jaxpr, constants: Constants) -> list[Attention]:
    """Return the attentions in 16 bits of a function without jits. No two share an operation."""
    found: list[Attention] = []
    taken: set[int] = set()
    for number, equation in enumerate(jaxpr.eqns):
        if equation.primitive.name != "dot_general" or number in taken:
            continue
        try:
            attention = _Search(jaxpr, constants, number).attention()
        except _OtherError:
            continue
        taken.update(attention.own)
        found.append(attention)
    return found


@dataclass(slots=True)
class _Search:
    """An attention while it is followed from its first product."""

    jaxpr: core.Jaxpr
    constants: Constants
    first: int
    sizes: dict[int, int] = field(default_factory=dict)
    known: dict[Any, _Value] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)
    scale: float = 1.0
    masks: list[_Operand] = field(default_factory=list)
    biases: list[_Operand] = field(default_factory=list)
    sides: tuple[Axes, Axes] = ((), ())
    batch: Labels = ()
    keys: int = -1
    value: _Operand | None = None

    def attention(self) -> Attention:
        """Return the attention.

        Raises:
            _OtherError: the product does not begin one.
        """
        self._begin()
        for number in range(self.first + 1, len(self.jaxpr.eqns)):
            equation = self.jaxpr.eqns[number]
            read = [self.known.get(atom) if isinstance(atom, core.Var) else None for atom in equation.invars]
            if not any(read):
                continue
            value = self._value(equation, read)
            result = equation.outvars[0]
            self.own.add(number)
            if value.stage is _Stage.RESULT:
                return self._found(_Operand(result, value.axes))
            holds = prod(self.sizes[label] for axis in value.axes for label in axis)
            if value.stage is not _Stage.SHIFT and value.stage is not _Stage.SUM and holds != prod(result.aval.shape):
                raise _OtherError  # values are repeated
            self.known[result] = value
        raise _OtherError

    def _label(self, size: int) -> Labels:
        if size == 1:
            return ()
        self.sizes[len(self.sizes)] = size
        return (len(self.sizes) - 1,)

    def _begin(self) -> None:
        equation = self.jaxpr.eqns[self.first]
        contracted, batch = equation.params["dimension_numbers"]
        shapes = [atom.aval.shape for atom in equation.invars]
        if len(contracted[0]) != 1:
            raise _OtherError
        sides: list[dict[int, Labels]] = [{}, {}]
        for places in (*zip(*batch, strict=True), *zip(*contracted, strict=True)):
            label = self._label(shapes[0][places[0]])
            for side, place in zip(sides, places, strict=True):
                side[place] = label
        self.batch = tuple(label for place in batch[0] for label in sides[0][place])
        for side, shape in zip(sides, shapes, strict=True):
            side.update((axis, self._label(size)) for axis, size in enumerate(shape) if axis not in side)
        self.sides = tuple(tuple(side[axis] for axis in range(len(side))) for side in sides)  # type: ignore[assignment]
        axes = _axes_of_product(equation, self.sides)
        self.own.add(self.first)
        self.known[equation.outvars[0]] = _Value(_Stage.SCORES, axes)

    def _value(self, equation: Any, read: Sequence[_Value | None]) -> _Value:
        """Return what an equation makes of the values that are known."""
        name = equation.primitive.name
        mine = [each for each in read if each is not None]
        moved = _moved(equation, mine[0].axes, self.sizes) if len(mine) == 1 and len(read) == 1 else None
        if moved is not None:
            return replace(mine[0], axes=moved)
        if len(mine) == 1 and mine[0].stage is _Stage.SCORES and (made := self._of_scores(equation, read, mine[0])):
            return made
        stages = tuple(None if each is None else each.stage for each in read)
        match name, stages:
            case "reduce_max", (_Stage.SCORES,):
                return self._reduced(equation, mine[0], _Stage.SHIFT)
            case "max", (_Stage.SHIFT, None) | (None, _Stage.SHIFT):
                return mine[0]
            case "sub", (_Stage.SCORES, _Stage.SHIFT):
                self._require_same_rows(*mine)
                return mine[0]
            case "exp", (_Stage.SCORES,):
                return _Value(_Stage.WEIGHTS, mine[0].axes)
            case "reduce_sum", (_Stage.WEIGHTS,):
                return self._reduced(equation, mine[0], _Stage.SUM)
            case "div", (_Stage.WEIGHTS, _Stage.SUM):
                self._require_same_rows(*mine)
                return _Value(_Stage.PROBABILITIES, mine[0].axes)
            case "div", (_Stage.ATTENDED, _Stage.SUM):
                self._require_same_rows(*mine)
                return _Value(_Stage.RESULT, mine[0].axes)
            case "dot_general", (_Stage.WEIGHTS, None) | (None, _Stage.WEIGHTS):
                return self._attended(equation, read, _Stage.ATTENDED)
            case "dot_general", (_Stage.PROBABILITIES, None) | (None, _Stage.PROBABILITIES):
                return self._attended(equation, read, _Stage.RESULT)
        raise _OtherError

    def _of_scores(self, equation: Any, read: Sequence[_Value | None], scores: _Value) -> _Value | None:
        """Return scores that are scaled, masked, or have a bias; None if they are something else."""
        name, inputs = equation.primitive.name, equation.invars
        others = [(place, atom) for place, atom in enumerate(inputs) if read[place] is None]
        if name in ("mul", "div", "add", "sub"):
            ((place, other),) = others
            number = self.constants.number(other)
            is_factor = name in ("mul", "div")
            if (place == 0 and name in ("div", "sub")) or (is_factor and (not number or self.biases)):
                return None
            if is_factor:
                assert number is not None
                self.scale *= number if name == "mul" else 1 / number
            elif number is None:
                self.biases.extend(self._beside(other, _axes_beside(other, equation, scores), is_negated=name == "sub"))
            return scores
        if name == "select_n" and len(others) == 2 and others[0][0] == 0:
            number = self.constants.number(others[1][1])
            if number is None or number > _MASKED:
                return None
            axes = _axes_beside(inputs[0], equation, scores)
            self.masks.extend(self._allowed(inputs[0], axes, is_negated=others[1][0] == 2))
            return scores
        return None

    def _reduced(self, equation: Any, value: _Value, stage: _Stage) -> _Value:
        """Return a number for each query. The axis that is left out is that of the keys."""
        (axis,) = equation.params["axes"] if len(equation.params["axes"]) == 1 else (None,)
        label = () if axis is None else value.axes[axis]
        if len(label) != 1 or self.keys not in (-1, *label):
            raise _OtherError
        self.keys = label[0]
        return _Value(stage, tuple(each for number, each in enumerate(value.axes) if number != axis))

    def _require_same_rows(self, value: _Value, of_rows: _Value) -> None:
        """Raise `_OtherError` if an array's entries do not belong to the rows beside them."""
        for axis, of_row in zip(value.axes, of_rows.axes, strict=True):
            if of_row != tuple(label for label in axis if label != self.keys) and not (
                of_row == () and self.value is not None and axis == self._width()
            ):
                raise _OtherError

    def _width(self) -> Labels:
        assert self.value is not None
        return tuple(
            label for axis in self.value.axes for label in axis if label not in self.batch and label != self.keys
        )

    def _attended(self, equation: Any, read: Sequence[_Value | None], stage: _Stage) -> _Value:
        if self.value is not None:
            raise _OtherError
        side = 0 if read[0] is not None else 1
        weights = read[side]
        assert weights is not None
        contracted, batch = equation.params["dimension_numbers"]
        atom = equation.invars[1 - side]
        axes: dict[int, Labels] = {
            theirs: weights.axes[mine]
            for kind in (contracted, batch)
            for mine, theirs in zip(kind[side], kind[1 - side], strict=True)
        }
        labels = [label for each in contracted[side] for label in weights.axes[each]]
        if len(labels) != 1 or self.keys not in (-1, *labels):
            raise _OtherError
        self.keys = labels[0]
        axes.update((axis, self._label(size)) for axis, size in enumerate(atom.aval.shape) if axis not in axes)
        of_value = tuple(axes[axis] for axis in range(len(axes)))
        self.value = _Operand(atom, of_value)
        return _Value(
            stage, _axes_of_product(equation, (weights.axes, of_value) if side == 0 else (of_value, weights.axes))
        )

    def _found(self, result: _Operand) -> Attention:
        equation = self.jaxpr.eqns[self.first]
        side = 1 if self.keys in {label for axis in self.sides[1] for label in axis} else 0
        query, key = (self._narrow(_Operand(equation.invars[each], self.sides[each])) for each in (1 - side, side))
        assert self.value is not None
        value = self._narrow(self.value)
        of_key, of_value = ({label for axis in each.axes for label in axis} for each in (key, value))
        free = [label for axis in query.axes for label in axis if label not in of_key]
        beside = {label for each in (*self.masks, *self.biases) for axis in each.axes for label in axis}
        if (
            len(of_key - {*self.batch, self.keys}) != 1
            or self.keys in self.batch
            or self.sizes[max(of_key - {*self.batch, self.keys})] % 8
            or self.sizes[max(of_key - {*self.batch, self.keys})] > _MAX_WIDTH
            or len(of_value - {*self.batch, self.keys}) != 1
            or not {*self.batch} <= of_value
            or not free
            or len({each.atom.aval.dtype for each in (query, key, value)}) > 1
            or self._is_read_outside(result.atom)
        ):
            raise _OtherError
        queries = max(free, key=lambda label: (label in beside, self.sizes[label]))
        found = Attention(
            own=frozenset(self.own),
            query=query,
            key=key,
            value=value,
            scale=self.scale,
            is_causal=False,
            masks=(),
            biases=(),
            sizes=self.sizes,
            batch=self.batch,
            group=tuple(label for label in free if label != queries),
            queries=queries,
            keys=self.keys,
            result=result,
            place=next(((file, line) for _, file, line in reversed(of_user(jit_adapter.calls_to(equation)))), None),
        )
        return self._with_masks(found)

    def _with_masks(self, found: Attention) -> Attention:
        """Return the attention with its masks, the constant ones told as what they are."""
        masks: list[_Operand] = []
        is_causal = False

        def is_same(operand: _Operand, wanted: Callable[[Any], Any]) -> bool:
            def test(array: Any) -> Any:
                known = {operand.atom: array} if isinstance(operand.atom, core.Var) else {}
                beside = found._beside(operand, known)
                return jnp.all(wanted(~beside if operand.is_negated else beside))

            return self.constants.holds(test, operand.atom)

        def causal(array: Any) -> Any:
            return jnp.tril(jnp.ones(array.shape[-2:], bool))

        is_square = self.sizes[found.queries] == self.sizes[found.keys]
        for mask in self.masks:
            if is_square and is_same(mask, lambda array: array == causal(array)):
                is_causal = True
            elif not is_same(mask, lambda array: array):
                masks.append(mask)
        biases: list[_Operand] = []
        for bias in self.biases:
            if (
                is_square
                and not bias.is_negated
                and is_same(bias, lambda array: jnp.where(causal(array), array == 0, array <= _MASKED))
            ):
                is_causal = True
            else:
                biases.append(bias)
        return replace(found, masks=tuple(masks), biases=tuple(biases), is_causal=is_causal)

    def _is_read_outside(self, result: Any) -> bool:
        made = {*self.known} - {result}
        later = (atom for number, each in enumerate(self.jaxpr.eqns) if number not in self.own for atom in each.invars)
        return any(isinstance(atom, core.Var) and atom in made for atom in (*later, *self.jaxpr.outvars))

    def _narrow(self, operand: _Operand) -> _Operand:
        """Return an array before it was cast to more bits.

        Raises:
            _OtherError: it has more than 16 bits.
        """
        atom = operand.atom
        while str(atom.aval.dtype) not in _NARROW:
            maker = next((each for each in self.jaxpr.eqns if atom in each.outvars), None)
            if maker is None or maker.primitive.name != "convert_element_type":
                raise _OtherError
            (atom,) = maker.invars
        return replace(operand, atom=atom)

    def _beside(self, atom: Any, axes: Axes, *, is_negated: bool) -> Iterator[_Operand]:
        """Yield an array with only the axes along which it was not repeated."""
        maker = self._behind(atom, axes)
        if maker is None:
            yield _Operand(atom, axes, is_negated)
        else:
            yield from self._beside(*maker, is_negated=is_negated)

    def _allowed(self, atom: Any, axes: Axes, *, is_negated: bool) -> Iterator[_Operand]:
        """Yield the masks that together make a mask."""
        maker = self.constants.maker(atom)
        behind = self._behind(atom, axes)
        name = "" if maker is None else maker.primitive.name
        if behind is not None:
            yield from self._allowed(*behind, is_negated=is_negated)
        elif maker is not None and name == "not":
            yield from self._allowed(maker.invars[0], axes, is_negated=not is_negated)
        elif maker is not None and name == ("or" if is_negated else "and"):
            for each in maker.invars:
                yield from self._allowed(each, axes, is_negated=is_negated)
        elif maker is not None and name in ("ne", "eq") and self.constants.number(maker.invars[1]) == 0:
            inner = maker.invars[0]
            source = self.constants.maker(inner)
            while source is not None and source.primitive.name == "convert_element_type" and inner.aval.dtype != bool:
                inner = source.invars[0]
                source = self.constants.maker(inner)
            if inner.aval.dtype != bool:
                yield _Operand(atom, axes, is_negated)
            else:
                yield from self._allowed(inner, axes, is_negated=is_negated != (name == "eq"))
        else:
            yield _Operand(atom, axes, is_negated)

    def _behind(self, atom: Any, axes: Axes) -> tuple[Any, Axes] | None:
        """Return the array that an array only repeats or reshapes, with its own axes; None if there is none."""
        maker = self.constants.maker(atom)
        if maker is None or not atom.aval.shape:
            return None
        (inner, *_), params = maker.invars, maker.params
        shape = inner.aval.shape
        match maker.primitive.name:
            case "broadcast_in_dim":
                places = tuple(map(int, params["broadcast_dimensions"]))
                return inner, tuple(
                    axes[place] if shape[axis] == atom.aval.shape[place] else () for axis, place in enumerate(places)
                )
            case "transpose":
                order = tuple(params["permutation"])
                return inner, tuple(axes[order.index(axis)] for axis in range(len(order)))
            case "squeeze" | "reshape" if [n for n in shape if n > 1] == [n for n in atom.aval.shape if n > 1]:
                kept = iter(each for each, size in zip(axes, atom.aval.shape, strict=True) if size > 1)
                return inner, tuple(next(kept) if size > 1 else () for size in shape)
        return None


def _axes_beside(atom: Any, equation: Any, scores: _Value) -> Axes:
    """Return the axes of an array that an operation combines with scores. Axes of length 1 are broadcast."""
    shape, whole = atom.aval.shape, equation.outvars[0].aval.shape
    pairs = zip(scores.axes, shape, whole, strict=False)
    return tuple(axis if size == wanted else () for axis, size, wanted in pairs)


def _axes_of_product(equation: Any, sides: tuple[Axes, Axes]) -> Axes:
    contracted, batch = equation.params["dimension_numbers"]
    shared = [sides[0][axis] for axis in batch[0]]
    free = [
        axes
        for number, side in enumerate(sides)
        for axis, axes in enumerate(side)
        if axis not in (*contracted[number], *batch[number])
    ]
    return (*shared, *free)


def _moved(equation: Any, axes: Axes, sizes: dict[int, int]) -> Axes | None:
    """Return the axes of an array that an operation only moves or casts; None if it does more."""
    params, shape = equation.params, equation.invars[0].aval.shape
    match equation.primitive.name:
        case "transpose":
            return tuple(axes[axis] for axis in params["permutation"])
        case "squeeze":
            return tuple(each for axis, each in enumerate(axes) if axis not in params["dimensions"])
        case "broadcast_in_dim":
            places = tuple(map(int, params["broadcast_dimensions"]))
            wanted = params["shape"]
            return tuple(
                axes[places.index(axis)] if axis in places and shape[places.index(axis)] == wanted[axis] else ()
                for axis in range(len(wanted))
            )
        case "reshape":
            return _regrouped([label for axis in axes for label in axis], params["new_sizes"], sizes)
        case name if name in _SAME:
            return axes
    return None


def _regrouped(labels: list[int], shape: Sequence[int], sizes: dict[int, int]) -> Axes | None:
    found: list[Labels] = []
    for size in shape:
        taken: list[int] = []
        while prod(sizes[label] for label in taken) < size:
            if not labels:
                return None
            taken.append(labels.pop(0))
        if prod(sizes[label] for label in taken) != size:
            return None
        found.append(tuple(taken))
    return tuple(found) if not labels else None
