"""Attentions of a function, and their computation by a fused kernel.

    softmax(scale * query @ key + bias, where allowed) @ value

`attention_search.py` finds them by data flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from memprof.sources.jax.checkpointing.evaluation import value_of

Labels = tuple[int, ...]
Axes = tuple[Labels, ...]  # of each axis; an axis that has length 1 or is broadcast has none


@dataclass(frozen=True, slots=True)
class Operand:
    """An array of an attention.

    Attributes:
        is_negated: whether a mask is True where attention is not allowed, or a bias is subtracted.
    """

    atom: Any
    axes: Axes
    is_negated: bool = False

    @property
    def labels(self) -> Labels:
        """The labels of all axes, in order."""
        return tuple(label for axis in self.axes for label in axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """An attention of a function.

    Attributes:
        own: the indices of its equations.
        query, key, value: the arrays that it reads, in 16 bits.
        sizes: the length of each label.
        batch, group: the labels of examples and heads, and of the query heads that share keys.
        queries, keys: the labels of tokens.
        result: the variable that it makes.
        place: the file and line of its first product.
    """

    own: frozenset[int]
    query: Operand
    key: Operand
    value: Operand
    scale: float
    is_causal: bool
    masks: tuple[Operand, ...]
    biases: tuple[Operand, ...]
    sizes: dict[int, int]
    batch: Labels
    group: Labels
    queries: int
    keys: int
    result: Operand
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
            "key_value_seq_lengths": "lengths" if self._is_padded else "",
        }
        given = "".join(f", {name}={value}" for name, value in options.items() if value)
        call = f'jax.nn.dot_product_attention(q, k, v{given}, implementation="cudnn")'
        return f"{call}, with a token of padding" if self._is_padded else call

    @property
    def _is_padded(self) -> bool:
        """Whether tokens are added: in training, cuDNN refuses an odd length (jax 0.10 to 0.12)."""
        return any(self.sizes[each] % 2 for each in (self.queries, self.keys))

    def attended(self, known: dict[Any, Any], implementation: str) -> Any:
        """Return the result of the attention by JAX's function."""
        first, heads = self.batch[:1], self.batch[1:]
        of_queries = (first, (self.queries,), (*heads, *self.group))
        arrays = [self.beside(each, known) for each in self.masks]
        masks = [~array if each.is_negated else array for each, array in zip(self.masks, arrays, strict=True)]
        arrays = [self.beside(each, known) for each in self.biases]
        biases = [-array if each.is_negated else array for each, array in zip(self.biases, arrays, strict=True)]
        query = self._array(self.query, known, (*of_queries, self._width(self.query)))
        key = self._array(self.key, known, (first, (self.keys,), heads, self._width(self.key)))
        value = self._array(self.value, known, (first, (self.keys,), heads, self._width(self.value)))
        of_scores = [
            sum(biases[1:], start=biases[0]).astype(query.dtype) if biases else None,
            reduce(jnp.logical_and, masks) if masks else None,
        ]
        num_queries, num_keys = query.shape[1], key.shape[1]
        lengths = None
        if self._is_padded:
            lengths = jnp.full(query.shape[:1], num_keys, jnp.int32)
            query, key, value = (_even(each, 1) for each in (query, key, value))
            of_scores = [None if each is None else _even(each, 2, 3) for each in of_scores]
        bias, mask = of_scores
        found = jax.nn.dot_product_attention(
            query,
            key,
            value,
            bias=bias,
            mask=mask,
            scale=self.scale,
            is_causal=self.is_causal,
            key_value_seq_lengths=lengths,
            implementation=implementation,
        )[:, :num_queries]
        order = (*first, self.queries, *heads, *self.group, *self._width(self.value))
        flat = found.reshape([self.sizes[label] for label in order])
        aval = self.result.atom.aval
        moved = jnp.transpose(flat, [order.index(label) for label in self.result.labels])
        return moved.reshape(aval.shape).astype(aval.dtype)

    def beside(self, operand: Operand, known: dict[Any, Any]) -> Any:
        """Return a mask or a bias as (batch or 1, heads or 1, queries, keys)."""
        axes = (self.batch[:1], (*self.batch[1:], *self.group), (self.queries,), (self.keys,))
        in_order = [label for axis in axes for label in axis]
        array = self._by_label(operand, known, [label for label in in_order if label in operand.labels])
        array = array.reshape([self.sizes[label] if label in operand.labels else 1 for label in in_order])
        is_whole = [bool({*axis} & {*operand.labels}) or number > 1 for number, axis in enumerate(axes)]
        sizes = [
            [self.sizes[label] if whole else 1 for label in axis] for whole, axis in zip(is_whole, axes, strict=True)
        ]
        return jnp.broadcast_to(array, [size for of_axis in sizes for size in of_axis]).reshape([*map(prod, sizes)])

    def _width(self, operand: Operand) -> Labels:
        tokens = (*self.batch, *self.group, self.queries, self.keys)
        return tuple(label for label in operand.labels if label not in tokens)

    def _array(self, operand: Operand, known: dict[Any, Any], axes: Sequence[Labels]) -> Any:
        """Return an array with its axes in another order, several merged into one."""
        moved = self._by_label(operand, known, [label for axis in axes for label in axis])
        return moved.reshape([prod(self.sizes[label] for label in axis) for axis in axes])

    def _by_label(self, operand: Operand, known: dict[Any, Any], order: Sequence[int]) -> Any:
        """Return an array with one axis for each label, in this order."""
        flat = value_of(operand.atom, known).reshape([self.sizes[label] for label in operand.labels])
        return jnp.transpose(flat, [operand.labels.index(label) for label in order])


def _even(array: Any, *axes: int) -> Any:
    """Return an array with even lengths along some axes: an entry of zeros is added if necessary."""
    return jnp.pad(array, [(0, length % 2 if axis in axes else 0) for axis, length in enumerate(array.shape)])
