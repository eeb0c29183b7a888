"""An estimate of the bytes that a traced step's values take at their peak, without a compile.

The step's operations are laid out in an order. A value is live from the operation that makes it to the last one that
reads it. XLA writes only some values to memory: elementwise operations become part of the kernels that read them. So a
value takes memory if an operation that cannot be fused makes it or reads it, or if it enters the recomputation of a
`jax.checkpoint`, which a barrier separates from the first computation. A matrix product or convolution whose result one
elementwise operation reads is one kernel with it: only the result of both is written.

The estimate leaves out the arguments and results of the step, padding, copies, and scratch memory. A plan adds their
size from a compile, because they hardly depend on the checkpoints.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from jax.extend import core

_CALLS = frozenset(
    "checkpoint closed_call core_call custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr jit pjit remat remat2"
    .split()
)  # fmt: skip
_CHECKPOINTS = frozenset({"checkpoint", "remat", "remat2"})
_LOOPS = frozenset({"cond", "scan", "shard_map", "while"})
_RENAMING = frozenset(
    "copy expand_dims name optimization_barrier reduce_precision reshape sharding_constraint squeeze stop_gradient"
    .split()
)  # fmt: skip
_BARRIER = "barrier"
_PRODUCTS = frozenset({"conv_general_dilated", "dot_general"})
# These operations read and write memory. A reduction writes memory, but its operands are fused into it.
_KERNELS = (
    _LOOPS
    | {_BARRIER}
    | frozenset(
        "all_gather all_to_all approx_top_k cholesky concatenate conv_general_dilated cumlogsumexp cummax cummin"
        " cumprod cumsum custom_call dot_general dot_product_attention_bwd_wrapper"
        " dot_product_attention_fwd_wrapper dynamic_update_slice eigh fft ffi_call gather pallas_call ppermute"
        " psum qr ragged_dot ragged_dot_general random_bits reduce_scatter reduce_window reduce_window_max"
        " reduce_window_sum rng_bit_generator scatter scatter-add select_and_gather_add select_and_scatter_add"
        " sort threefry2x32 top_k triangular_solve".split()
    )
)
_REDUCTIONS = frozenset(
    "argmax argmin reduce reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum".split()
)


@dataclass(slots=True, kw_only=True)
class _Operation:
    """An operation on values, which are numbers.

    Attributes:
        inner_bytes: bytes of values inside it: the body of a loop.
        factors: the inputs of the product that is in the same kernel as this elementwise operation; empty if there is
            none.
    """

    name: str
    read: list[int]
    made: list[int]
    inner_bytes: int = 0
    factors: frozenset[int] = frozenset()

    @property
    def is_product(self) -> bool:
        return self.name in _PRODUCTS or bool(self.factors)

    @property
    def is_kernel(self) -> bool:
        return self.name in _KERNELS or self.is_product

    @property
    def is_elementwise(self) -> bool:
        return not self.is_kernel and self.name not in _REDUCTIONS


def estimated_peaks(jaxpr: core.Jaxpr) -> tuple[int, int]:
    """Return the bytes of a function's values at their peak, without its arguments and results.

    Returns:
        The peak in the order of the program, and in a depth-first order. Compiles tell which one XLA's order resembles.
    """
    program = _Program(jaxpr)
    return program.peak_bytes(program.operations), program.peak_bytes(program.in_depth_first_order())


class _Program:
    """A function's operations without calls; values that share memory have the same storage."""

    def __init__(self, jaxpr: core.Jaxpr) -> None:
        self.operations: list[_Operation] = []
        self._sizes: list[int] = []
        self._storage: list[int] = []
        known = {var: self._value(var) for var in (*jaxpr.constvars, *jaxpr.invars)}
        self._around = set(known.values())
        self._add(jaxpr, known)
        self._results = [known[atom] for atom in jaxpr.outvars if isinstance(atom, core.Var)]
        self._around.update(self._storage[value] for value in self._results)
        self._remove_unread()
        self._merge_products()

    def _value(self, var: Any) -> int:
        number = len(self._sizes)
        self._sizes.append(_size(var))
        self._storage.append(number)
        return number

    def _renamed(self, value: int) -> int:
        """Return another value with the same storage."""
        self._sizes.append(self._sizes[value])
        self._storage.append(self._storage[value])
        return len(self._sizes) - 1

    def _add(self, jaxpr: core.Jaxpr, known: dict[Any, int]) -> None:
        for equation in jaxpr.eqns:
            name, inner = equation.primitive.name, list(core.jaxprs_in_params(equation.params))
            read = [known[atom] for atom in equation.invars if isinstance(atom, core.Var)]
            if name in _CALLS and inner:
                self._add_call(equation, inner[0], known)
            elif name in _RENAMING and len(read) == len(equation.outvars):
                known.update(zip(equation.outvars, read, strict=True))
            else:
                made = [self._value(var) for var in equation.outvars]
                known.update(zip(equation.outvars, made, strict=True))
                inside = [min(estimated_peaks(each)) for each in inner] if name in _LOOPS else []
                operation = _Operation(name=name, read=read, made=made, inner_bytes=max(inside, default=0))
                self.operations.append(operation)

    def _add_call(self, equation: Any, inner: core.Jaxpr, known: dict[Any, int]) -> None:
        given = [known.get(atom) if isinstance(atom, core.Var) else None for atom in equation.invars]
        if equation.primitive.name in _CHECKPOINTS and equation.params.get("differentiated"):
            read = [value for value in given if value is not None]
            made = [self._renamed(value) for value in read]
            self.operations.append(_Operation(name=_BARRIER, read=read, made=made))
            behind = iter(made)
            given = [None if value is None else next(behind) for value in given]
        constants = {var: self._value(var) for var in inner.constvars}
        own: dict[Any, int] = dict(constants)
        for var, value in zip(inner.invars, given, strict=True):
            own[var] = self._value(var) if value is None else value
            if value is None:
                constants[var] = own[var]
        self._around.update(constants.values())
        self._add(inner, own)
        for var, atom in zip(equation.outvars, inner.outvars, strict=True):
            known[var] = own[atom] if isinstance(atom, core.Var) else self._value(var)

    def _remove_unread(self) -> None:
        read = set(self._results)
        left: list[_Operation] = []
        for operation in reversed(self.operations):
            if operation.name == _BARRIER:
                pairs = [pair for pair in zip(operation.read, operation.made, strict=True) if pair[1] in read]
                operation.read, operation.made = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            if read.intersection(operation.made):
                read.update(operation.read)
                left.append(operation)
        self.operations = left[::-1]

    def _merge_products(self) -> None:
        """Merge each product into the elementwise operation that alone reads it; XLA computes both in one kernel."""
        storage = self._storage
        readers: dict[int, dict[int, _Operation]] = defaultdict(dict)
        for operation in self.operations:
            for value in operation.read:
                readers[storage[value]][id(operation)] = operation
        left: list[_Operation] = []
        for operation in self.operations:
            reader = self._epilogue(operation, readers) if operation.is_product else None
            if reader is None:
                left.append(operation)
                continue
            product = storage[operation.made[0]]
            reader.factors = operation.factors or frozenset(storage[value] for value in operation.read)
            reader.read = [*operation.read, *(value for value in reader.read if storage[value] != product)]
            for value in operation.read:
                readers[storage[value]].pop(id(operation), None)
                readers[storage[value]][id(reader)] = reader
        self.operations = left

    def _epilogue(self, product: _Operation, readers: Mapping[int, Mapping[int, _Operation]]) -> _Operation | None:
        """Return the elementwise operation that alone reads a product, if its result is not larger; otherwise None."""
        value = self._storage[product.made[0]]
        if value in self._around or len(readers[value]) != 1:
            return None
        (reader,) = readers[value].values()
        return reader if reader.is_elementwise and self._sizes[reader.made[0]] <= self._sizes[value] else None

    def in_depth_first_order(self) -> list[_Operation]:
        """Return the operations in post-order from the results: an operation follows the last of its inputs."""
        maker = {value: operation for operation in self.operations for value in operation.made}
        order: list[_Operation] = []
        done: set[int] = set()
        pending = [(maker[value], False) for value in reversed(self._results) if value in maker]
        while pending:
            operation, is_open = pending.pop()
            if id(operation) in done:
                continue
            if is_open:
                done.add(id(operation))
                order.append(operation)
            else:
                pending.append((operation, True))
                pending += [(maker[value], False) for value in reversed(operation.read) if value in maker]
        return order

    def peak_bytes(self, order: Sequence[_Operation]) -> int:
        """Return the largest sum of live values if the operations run in an order."""
        storage, sizes = self._storage, self._sizes
        written = set(self._around)
        for operation in order:
            if not operation.is_elementwise:
                written.update(storage[value] for value in operation.made)
            if operation.is_kernel:
                written.update(storage[value] for value in operation.read)
        behind: dict[int, set[int]] = {}  # the written values from which a fused value is computed
        born: dict[int, int] = {}
        last: dict[int, int] = {}
        for place, operation in enumerate(order):
            read: set[int] = set()
            for value in operation.read:
                read |= behind.get(storage[value], {storage[value]})
            made = [storage[value] for value in operation.made]
            if operation.name == _BARRIER or any(value in written for value in made):
                last.update(dict.fromkeys(read, place))
            for value in made:
                if value not in written:
                    behind[value] = read
                elif operation.name != _BARRIER:
                    born[value] = place
        change = [0] * (len(order) + 1)
        for value, start in born.items():
            if value in self._around:
                continue
            stop = last.get(value, start)
            change[start] += sizes[value]
            change[stop if self._is_overwritten(value, order[stop]) and stop > start else stop + 1] -= sizes[value]
        live, most = 0, 0
        for place, operation in enumerate(order):
            live += change[place]
            most = max(most, live + operation.inner_bytes)
        return most

    def _is_overwritten(self, value: int, reader: _Operation) -> bool:
        """Whether the last reader of a value may write its result in the value's place."""
        may_overwrite = reader.is_elementwise or (bool(reader.factors) and value not in reader.factors)
        return may_overwrite and any(
            self._sizes[made] == self._sizes[value] for made in reader.made if self._storage[made] not in self._around
        )


def _size(var: Any) -> int:
    aval = var.aval
    itemsize = getattr(getattr(aval, "dtype", None), "itemsize", 0)
    return prod(aval.shape) * itemsize if itemsize else 0
