"""What an optimizer keeps, said in shapes: from the parameters' leaves to the leaves of the optimizer's state.

Each optimizer declares its state in these words, without jax, so that listings can tell what it costs, and so that the
state in a capture can be checked where jax is not installed:

    ADAM = state_of(same, same, scalars=("int32",))           # two moments like the parameters, and a step counter
    ADAM([ParamLeaf(name="kernel", shape=(32, 128), dtype="float32")])

The tests hold every declaration to the optimizer's own pytree, leaf by leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

# Bytes of one element, by JAX's names.
_ITEM_BYTES: Final = {
    "uint8": 1,
    "int8": 1,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "float64": 8,
}

Shape = tuple[int, ...]
PARAMS_DTYPE: Final = "params"  # in `state_of`: the smallest dtype among the parameters, whatever it is


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamLeaf:
    """A parameter: the last key of its path (`kernel`, `bias`), its shape, and its dtype in JAX's words."""

    name: str
    shape: Shape
    dtype: str = "float32"

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Whether it is a weight matrix, in its last two axes; axes before these are a stack of layers.

        The shape alone cannot tell: the biases of scanned layers are stacked to two axes too, and an embedding table
        has two axes but is no linear map. Hence the name that Flax gives to weights decides.
        """
        return self.name == "kernel" and len(self.shape) >= 2


@dataclass(frozen=True, slots=True, order=True)
class StateLeaf:
    """A leaf of the optimizer's state: its shape, and its dtype in JAX's words."""

    shape: Shape
    dtype: str

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * _ITEM_BYTES[self.dtype]


StateOfParam = Callable[[ParamLeaf], Iterable[StateLeaf]]
StateOfParams = Callable[[Sequence[ParamLeaf]], list[StateLeaf]]


def state_of(*of_each_param: StateOfParam, scalars: Sequence[str] = ()) -> StateOfParams:
    """Returns the declaration of a state.

    Args:
        of_each_param: what is kept for a parameter.
        scalars: dtypes of the scalars that are kept once (counters, estimates).
    """

    def declare(params: Sequence[ParamLeaf]) -> list[StateLeaf]:
        smallest = min((param.dtype for param in params), key=_ITEM_BYTES.__getitem__, default="float32")
        state = [StateLeaf((), smallest if dtype == PARAMS_DTYPE else dtype) for dtype in scalars]
        for param in params:
            for keep in of_each_param:
                state.extend(keep(param))
        return state

    return declare


def same(param: ParamLeaf) -> Iterable[StateLeaf]:
    """Keeps an array of the parameter's shape and dtype: a moment."""
    return (StateLeaf(param.shape, param.dtype),)


def bfloat16(param: ParamLeaf) -> Iterable[StateLeaf]:
    """Keeps an array of the parameter's shape in bfloat16."""
    return (StateLeaf(param.shape, "bfloat16"),)


def one_number(param: ParamLeaf) -> Iterable[StateLeaf]:
    """Keeps one number for the whole parameter, in its dtype."""
    return (StateLeaf((), param.dtype),)


def size_bytes(state: Iterable[StateLeaf]) -> int:
    """Returns the bytes of all leaves together."""
    return sum(leaf.size_bytes for leaf in state)
