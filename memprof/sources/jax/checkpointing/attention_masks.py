"""The masks and biases of an attention: their parts, and the meaning of constant ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax.extend import core

from memprof.sources.jax.checkpointing.attentions import Attention, Axes, Operand
from memprof.sources.jax.checkpointing.constants import Constants

MASKED = -1e4  # masked scores are at most this


@dataclass(frozen=True, slots=True)
class Beside:
    """A mask or a bias of scores.

    Attributes:
        whole: the array that an operation combines with the scores.
        parts: the arrays of which it consists, as far as they are known. They may be made outside of a scan.
    """

    whole: Operand
    parts: tuple[Operand, ...]

    def kept(self, drops: Callable[[Operand], bool], is_inside: Callable[[Any], bool]) -> Iterator[Operand]:
        """Yield the parts that are not dropped; the whole if a function cannot read them."""
        kept = [each for each in self.parts if not drops(each)]
        yield from kept if all(is_inside(each.atom) for each in kept) else [self.whole]


def with_masks(
    found: Attention,
    masks: Iterable[Beside],
    biases: Iterable[Beside],
    constants: Constants,
    is_inside: Callable[[Any], bool],
) -> Attention:
    """Return the attention with its masks and biases; constant ones that are causal or have no effect are dropped.

    Args:
        is_inside: whether the function with the attention can read an array.
    """
    is_causal = False

    def always_holds(operand: Operand, wanted: Callable[[Any], Any]) -> bool:
        def test(array: Any) -> Any:
            known = {operand.atom: array} if isinstance(operand.atom, core.Var) else {}
            beside = found.beside(operand, known)
            return jnp.all(wanted(~beside if operand.is_negated else beside))

        return constants.holds(test, operand.atom)

    def causal(array: Any) -> Any:
        return jnp.tril(jnp.ones(array.shape[-2:], bool))

    is_square = found.sizes[found.queries] == found.sizes[found.keys]

    def drops_mask(mask: Operand) -> bool:
        nonlocal is_causal
        if is_square and always_holds(mask, lambda array: array == causal(array)):
            is_causal = True
            return True
        return always_holds(mask, lambda array: array)

    def drops_bias(bias: Operand) -> bool:
        nonlocal is_causal
        is_mask = (
            is_square
            and not bias.is_negated
            and always_holds(bias, lambda array: jnp.where(causal(array), array == 0, array <= MASKED))
        )
        is_causal |= is_mask
        return is_mask

    kept = [each for mask in masks for each in mask.kept(drops_mask, is_inside)]
    kept_biases = [each for bias in biases for each in bias.kept(drops_bias, is_inside)]
    return replace(found, masks=tuple(kept), biases=tuple(kept_biases), is_causal=is_causal)


def unrepeated(constants: Constants, atom: Any, axes: Axes, *, is_negated: bool) -> Iterator[Operand]:
    """Yield the array before broadcasts, with only the axes along which it was not repeated."""
    maker = _behind(constants, atom, axes)
    if maker is None:
        yield Operand(atom, axes, is_negated)
    else:
        yield from unrepeated(constants, *maker, is_negated=is_negated)


def allowed(constants: Constants, atom: Any, axes: Axes, *, is_negated: bool) -> Iterator[Operand]:
    """Yield the masks whose conjunction is a mask."""
    maker = constants.maker(atom)
    behind = _behind(constants, atom, axes)
    name = "" if maker is None else maker.primitive.name
    if behind is not None:
        yield from allowed(constants, *behind, is_negated=is_negated)
    elif maker is not None and name == "not":
        yield from allowed(constants, maker.invars[0], axes, is_negated=not is_negated)
    elif maker is not None and name == ("or" if is_negated else "and"):
        shape = atom.aval.shape
        for each in maker.invars:  # axes of length 1 are broadcast
            sizes = zip(axes, each.aval.shape, shape, strict=True)
            own = tuple(labels if size == whole else () for labels, size, whole in sizes)
            yield from allowed(constants, each, own, is_negated=is_negated)
    elif maker is not None and name in ("ne", "eq") and constants.number(maker.invars[1]) == 0:
        inner = maker.invars[0]
        source = constants.maker(inner)
        while source is not None and source.primitive.name == "convert_element_type" and inner.aval.dtype != bool:
            inner = source.invars[0]
            source = constants.maker(inner)
        if inner.aval.dtype != bool:
            yield Operand(atom, axes, is_negated)
        else:
            yield from allowed(constants, inner, axes, is_negated=is_negated != (name == "eq"))
    else:
        yield Operand(atom, axes, is_negated)


def _behind(constants: Constants, atom: Any, axes: Axes) -> tuple[Any, Axes] | None:
    """Return the array that this one only broadcasts, transposes or reshapes, with its axes; None if it does more."""
    maker = constants.maker(atom)
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
