"""Search for attentions that a fused kernel can compute.

Attentions are found by data flow. Each axis of an array has labels: the axes of queries, keys and values that it comes
from. So axes may have any order, heads may be axes of `vmap`, and groups of query heads may share keys. An attention
with other operations, such as dropout of its probabilities, is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from math import prod
from typing import Any

from jax.extend import core

from memprof.analysis.records.rewrites import FusedAttention
from memprof.sources.jax.checkpointing.attention_masks import MASKED, Beside, allowed, unrepeated, with_masks
from memprof.sources.jax.checkpointing.attentions import Attention, Axes, Labels, Operand
from memprof.sources.jax.checkpointing.constants import Constants
from memprof.sources.jax.checkpointing.layers import of_user
from memprof.sources.jax.checkpointing.parts import Part, with_parts
from memprof.sources.jax.tracing import jit_adapter

_NARROW = ("bfloat16", "float16")
_MAX_WIDTH = 128  # columns of a head; JAX allows 256 on a Hopper GPU, but only if it finds that GPU on this machine
_PASS_THROUGH = frozenset({"convert_element_type", "copy", "name", "stop_gradient"})


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


class _NotAttentionError(Exception):
    """The operations are not those of an attention."""


def fused(step: Callable[..., Any], how: FusedAttention, found: list[Attention] | None = None) -> Callable[..., Any]:
    """Return a step that computes its attentions with `jax.nn.dot_product_attention`.

    Args:
        found: when the step is traced, its attentions are added to this list.

    Raises:
        MemprofError: a framework has jitted the step.
    """

    def find(jaxpr: core.Jaxpr, constants: Constants) -> list[Part]:
        own = find_attentions(jaxpr, constants)
        if found is not None:
            found.extend(own)
        return [Part(own=each.own, reads=each.reads, evaluate=partial(attend, each)) for each in own]

    def attend(attention: Attention, _: core.Jaxpr, known: dict[Any, Any]) -> None:
        known[attention.result.atom] = attention.attended(known, how.implementation)

    return with_parts(step, find)


def find_attentions(jaxpr: core.Jaxpr, constants: Constants) -> list[Attention]:
    """Return the 16-bit attentions of a function without jits. No two share an operation."""
    found: list[Attention] = []
    taken: set[int] = set()
    for number, equation in enumerate(jaxpr.eqns):
        if equation.primitive.name != "dot_general" or number in taken:
            continue
        try:
            attention = _Search(jaxpr, constants, number).attention()
        except _NotAttentionError:
            continue
        taken.update(attention.own)
        found.append(attention)
    return found


@dataclass(slots=True)
class _Search:
    """Follows an attention from its first product."""

    jaxpr: core.Jaxpr
    constants: Constants
    first: int
    sizes: dict[int, int] = field(default_factory=dict)
    known: dict[Any, _Value] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)
    scale: float = 1.0
    masks: list[Beside] = field(default_factory=list)
    biases: list[Beside] = field(default_factory=list)
    sides: tuple[Axes, Axes] = ((), ())
    batch: Labels = ()
    keys: int = -1
    value: Operand | None = None

    def attention(self) -> Attention:
        """Return the attention.

        Raises:
            _NotAttentionError: the product does not begin one.
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
                return self._found(Operand(result, value.axes))
            holds = prod(self.sizes[label] for axis in value.axes for label in axis)
            if value.stage is not _Stage.SHIFT and value.stage is not _Stage.SUM and holds != prod(result.aval.shape):
                raise _NotAttentionError  # values are repeated
            self.known[result] = value
        raise _NotAttentionError

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
            raise _NotAttentionError
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
        """Return the value that an equation computes from known values."""
        name = equation.primitive.name
        tracked = [each for each in read if each is not None]
        moved = _moved(equation, tracked[0].axes, self.sizes) if len(tracked) == 1 and len(read) == 1 else None
        if moved is not None:
            return replace(tracked[0], axes=moved)
        if (
            len(tracked) == 1
            and tracked[0].stage is _Stage.SCORES
            and (made := self._of_scores(equation, read, tracked[0]))
        ):
            return made
        stages = tuple(None if each is None else each.stage for each in read)
        match name, stages:
            case "reduce_max", (_Stage.SCORES,):
                return self._reduced(equation, tracked[0], _Stage.SHIFT)
            case "max", (_Stage.SHIFT, None) | (None, _Stage.SHIFT):
                return tracked[0]
            case "sub", (_Stage.SCORES, _Stage.SHIFT):
                self._require_same_rows(*tracked)
                return tracked[0]
            case "exp", (_Stage.SCORES,):
                return _Value(_Stage.WEIGHTS, tracked[0].axes)
            case "reduce_sum", (_Stage.WEIGHTS,):
                return self._reduced(equation, tracked[0], _Stage.SUM)
            case "div", (_Stage.WEIGHTS, _Stage.SUM):
                self._require_same_rows(*tracked)
                return _Value(_Stage.PROBABILITIES, tracked[0].axes)
            case "div", (_Stage.ATTENDED, _Stage.SUM):
                self._require_same_rows(*tracked)
                return _Value(_Stage.RESULT, tracked[0].axes)
            case "dot_general", (_Stage.WEIGHTS, None) | (None, _Stage.WEIGHTS):
                return self._attended(equation, read, _Stage.ATTENDED)
            case "dot_general", (_Stage.PROBABILITIES, None) | (None, _Stage.PROBABILITIES):
                return self._attended(equation, read, _Stage.RESULT)
        raise _NotAttentionError

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
                bias = Operand(other, _axes_beside(other, equation, scores), name == "sub")
                parts = unrepeated(self.constants, other, bias.axes, is_negated=bias.is_negated)
                self.biases.append(Beside(bias, tuple(parts)))
            return scores
        if name == "select_n" and len(others) == 2 and others[0][0] == 0:
            number = self.constants.number(others[1][1])
            if number is None or number > MASKED:
                return None
            mask = Operand(inputs[0], _axes_beside(inputs[0], equation, scores), others[1][0] == 2)
            parts = allowed(self.constants, mask.atom, mask.axes, is_negated=mask.is_negated)
            self.masks.append(Beside(mask, tuple(parts)))
            return scores
        return None

    def _reduced(self, equation: Any, value: _Value, stage: _Stage) -> _Value:
        """Return the reduction over the axis of the keys, to one number for each query."""
        (axis,) = equation.params["axes"] if len(equation.params["axes"]) == 1 else (None,)
        label = () if axis is None else value.axes[axis]
        if len(label) != 1 or self.keys not in (-1, *label):
            raise _NotAttentionError
        self.keys = label[0]
        return _Value(stage, tuple(each for number, each in enumerate(value.axes) if number != axis))

    def _require_same_rows(self, value: _Value, of_rows: _Value) -> None:
        """Raise `_NotAttentionError` unless values of rows line up with the rows of an array."""
        for axis, of_row in zip(value.axes, of_rows.axes, strict=True):
            if of_row != tuple(label for label in axis if label != self.keys) and not (
                of_row == () and self.value is not None and axis == self._width()
            ):
                raise _NotAttentionError

    def _width(self) -> Labels:
        assert self.value is not None
        return tuple(label for label in self.value.labels if label not in self.batch and label != self.keys)

    def _attended(self, equation: Any, read: Sequence[_Value | None], stage: _Stage) -> _Value:
        if self.value is not None:
            raise _NotAttentionError
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
            raise _NotAttentionError
        self.keys = labels[0]
        axes.update((axis, self._label(size)) for axis, size in enumerate(atom.aval.shape) if axis not in axes)
        of_value = tuple(axes[axis] for axis in range(len(axes)))
        self.value = Operand(atom, of_value)
        return _Value(
            stage, _axes_of_product(equation, (weights.axes, of_value) if side == 0 else (of_value, weights.axes))
        )

    def _found(self, result: Operand) -> Attention:
        equation = self.jaxpr.eqns[self.first]
        side = 1 if self.keys in {label for axis in self.sides[1] for label in axis} else 0
        query, key = (self._narrow(Operand(equation.invars[each], self.sides[each])) for each in (1 - side, side))
        assert self.value is not None
        value = self._narrow(self.value)
        of_key, of_value = ({*each.labels} for each in (key, value))
        free = [label for label in query.labels if label not in of_key]
        beside = {label for each in (*self.masks, *self.biases) for part in each.parts for label in part.labels}
        (of_width, *others), widths = of_key - {*self.batch, self.keys}, of_value - {*self.batch, self.keys}
        if (
            others
            or self.keys in self.batch
            or self.sizes[of_width] % 8
            or self.sizes[of_width] > _MAX_WIDTH
            or len(widths) != 1
            or not {*self.batch} <= of_value
            or not free
            or len({each.atom.aval.dtype for each in (query, key, value)}) > 1
            or self._is_read_outside(result.atom)
        ):
            raise _NotAttentionError
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
        return with_masks(found, self.masks, self.biases, self.constants, self._is_inside)

    def _is_inside(self, atom: Any) -> bool:
        made = (var for each in self.jaxpr.eqns for var in each.outvars)
        return isinstance(atom, core.Literal) or atom in {*self.jaxpr.constvars, *self.jaxpr.invars, *made}

    def _is_read_outside(self, result: Any) -> bool:
        made = {*self.known} - {result}
        later = (atom for number, each in enumerate(self.jaxpr.eqns) if number not in self.own for atom in each.invars)
        return any(isinstance(atom, core.Var) and atom in made for atom in (*later, *self.jaxpr.outvars))

    def _narrow(self, operand: Operand) -> Operand:
        """Return an array before it was cast to more bits.

        Raises:
            _NotAttentionError: it has more than 16 bits.
        """
        atom = operand.atom
        while str(atom.aval.dtype) not in _NARROW:
            maker = next((each for each in self.jaxpr.eqns if atom in each.outvars), None)
            if maker is None or maker.primitive.name != "convert_element_type":
                raise _NotAttentionError
            (atom,) = maker.invars
        return replace(operand, atom=atom)


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
        case name if name in _PASS_THROUGH:
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
