"""Estimate the peak bytes of a traced step's values, without a compile.

XLA writes only some values to memory: elementwise operations and gathers are fused into the kernels that read them. So
a value takes memory if an operation that cannot be fused makes or reads it, or if it enters the recomputation of a
`jax.checkpoint`, which a barrier separates from the first computation. A matrix product and the one elementwise
operation that reads it form one kernel, which writes only the final result. cuDNN's convolutions do so only for sums
and maxima (ReLU). For some convolutions, XLA writes padded images.

The kernels are laid out in the order of the program and in a greedy order. A value is live from the kernel that makes
it to the last one that reads it.

The estimate leaves out the arguments and results of the step, copies, and scratch memory. A plan adds their size from
its compiles, because they hardly depend on the checkpoints. Arrays in host memory count as zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
from jax.extend import core

from memprof.sources.jax.checkpointing.greedy_order import Kernel, greedy_order
from memprof.sources.jax.tracing.jit_adapter import CHECKPOINTS

_CALLS = frozenset(
    "checkpoint closed_call core_call custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr jit pjit remat remat2"
    .split()
)  # fmt: skip
_LOOPS = frozenset({"cond", "scan", "shard_map", "while"})
_RENAMING = frozenset(
    "copy expand_dims name optimization_barrier reduce_precision reshape sharding_constraint squeeze stop_gradient"
    .split()
)  # fmt: skip
_BARRIER = "barrier"
_BROADCAST = "broadcast_in_dim"
_CONVOLUTION = "conv_general_dilated"
_PRODUCTS = frozenset({_CONVOLUTION, "dot_general"})
_RAGGED_PRODUCTS = frozenset({"ragged_dot", "ragged_dot_general"})
_TRANSPOSED = "transposed copy"
_GATHER = "gather"
_REVERSAL = "rev"
_UPDATES = frozenset({"dynamic_update_slice", "scatter", "scatter-add"})  # they write into their first argument
_CONVOLUTION_EPILOGUES = frozenset({"add", "max"})
# These operations read and write memory.
_KERNELS = (
    _LOOPS
    | {_BARRIER}
    | frozenset(
        "all_gather all_to_all approx_top_k cholesky conv_general_dilated cumlogsumexp cummax cummin"
        " cumprod cumsum custom_call dot_general dot_product_attention_bwd_wrapper"
        " dot_product_attention_fwd_wrapper dynamic_update_slice eigh fft ffi_call pallas_call ppermute"
        " psum qr ragged_dot ragged_dot_general random_bits reduce_scatter reduce_window reduce_window_max"
        " reduce_window_sum rng_bit_generator scatter scatter-add select_and_gather_add select_and_scatter_add"
        " sort threefry2x32 top_k triangular_solve".split()
    )
)
# These write memory, but the operations that they read are fused into them.
_WRITING = frozenset(
    "argmax argmin concatenate reduce reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum".split()
) | {_TRANSPOSED}


@dataclass(slots=True, kw_only=True)
class _Operation:
    """An operation on values, which are numbers.

    Attributes:
        inner_bytes: bytes of values inside it: the body of a loop.
        factors: the inputs of the product that is in the same kernel as this elementwise operation; empty if there is
            none.
        has_convolution: whether this product is a convolution.
    """

    name: str
    read: list[int]
    made: list[int]
    inner_bytes: int = 0
    factors: frozenset[int] = frozenset()
    has_convolution: bool = False

    @property
    def is_product(self) -> bool:
        return self.name in _PRODUCTS or bool(self.factors)

    @property
    def is_kernel(self) -> bool:
        return self.name in _KERNELS or self.is_product

    @property
    def is_fused(self) -> bool:
        """Whether it is a part of the kernels that read it."""
        return not self.is_kernel and self.name not in _WRITING

    @property
    def is_elementwise(self) -> bool:
        return self.is_fused and self.name != _GATHER


def estimated_peaks(jaxpr: core.Jaxpr) -> tuple[int, int]:
    """Return the bytes of a function's values at their peak, without its arguments and results.

    Returns:
        The peak in the order of the program, and in a greedy order. Compiles show which one XLA's order resembles.
    """
    program = _Program(jaxpr)
    kernels = program.kernels()
    greedy = [kernels[number] for number in greedy_order(kernels, program.sizes, program.results)]
    return program.peak_bytes(kernels), program.peak_bytes(greedy)


class _Program:
    """A function's operations without calls; values that share memory have the same storage."""

    def __init__(self, jaxpr: core.Jaxpr) -> None:
        self.operations: list[_Operation] = []
        self.sizes: list[int] = []
        self._storage: list[int] = []
        self._reversed: set[int] = set()
        self._masks: dict[tuple[int, int], int] = {}
        known = {var: self._value(_size(var)) for var in (*jaxpr.constvars, *jaxpr.invars)}
        self._boundary = set(known.values())
        self._add(jaxpr, known)
        self._results = [known[atom] for atom in jaxpr.outvars if isinstance(atom, core.Var)]
        self.results = {self._storage[value] for value in self._results}
        self._boundary.update(self.results)
        self._remove_unread()
        self._merge_products()

    def _value(self, size_bytes: int) -> int:
        number = len(self.sizes)
        self.sizes.append(size_bytes)
        self._storage.append(number)
        return number

    def _renamed(self, value: int) -> int:
        """Return another value with the same storage."""
        self.sizes.append(self.sizes[value])
        self._storage.append(self._storage[value])
        return len(self.sizes) - 1

    def _add(self, jaxpr: core.Jaxpr, known: dict[Any, int]) -> None:
        for equation in jaxpr.eqns:
            name, inner = equation.primitive.name, list(core.jaxprs_in_params(equation.params))
            read = [known[atom] for atom in equation.invars if isinstance(atom, core.Var)]
            if name in _CALLS and inner:
                self._add_call(equation, inner[0], known)
            elif name in _RENAMING and len(read) == len(equation.outvars):
                known.update(zip(equation.outvars, read, strict=True))
            else:
                if name == _CONVOLUTION and len(read) == len(equation.invars):
                    read = self._padded(equation, read)
                if name in _RAGGED_PRODUCTS and len(read) == len(equation.invars):
                    read = self._by_group(equation, read)
                made = [self._value(_size(var)) for var in equation.outvars]
                known.update(zip(equation.outvars, made, strict=True))
                if name == _REVERSAL:
                    self._reversed.update(made)
                inside = [min(estimated_peaks(each)) for each in inner] if name in _LOOPS else []
                operation = _Operation(name=name, read=read, made=made, inner_bytes=max(inside, default=0))
                self.operations.append(operation)

    def _padded(self, equation: Any, read: list[int]) -> list[int]:
        """Return the inputs of a convolution. cuDNN needs an image without dilation, and equal padding on both sides.

        XLA writes other images with their padding. Gradients have their own kernels: the gradient of an image reads
        reversed filters, and that of filters reads a dilated cotangent in their place.
        """
        image, filters = read
        params = equation.params
        is_even = {*params["lhs_dilation"]} <= {1} and all(low == high for low, high in params["padding"])
        if is_even or filters in self._reversed or not {*params["rhs_dilation"]} <= {1}:
            return read
        sizes = [equation.invars[0].aval.shape[place] for place in params["dimension_numbers"].lhs_spec[2:]]
        padded = [
            (size - 1) * step + 1 + low + high
            for size, step, (low, high) in zip(sizes, params["lhs_dilation"], params["padding"], strict=True)
        ]
        made = self._value(self.sizes[image] * prod(padded) // prod(sizes))
        self.operations.append(_Operation(name="pad", read=[image], made=[made]))
        return [made, filters]

    def _by_group(self, equation: Any, read: list[int]) -> list[int]:
        """Return the inputs of a product of ragged groups. XLA copies them for each group, with zeros elsewhere.

        If the groups are contracted, a batched product reads the copies of both inputs. Otherwise a product reads the
        copies of its left input, transposed, so that it also sums over the groups.
        """
        left, right, sizes = read
        numbers = equation.params["ragged_dot_dimension_numbers"]
        (contracted, _), (batch, _) = numbers.dot_dimension_numbers
        (ragged,) = numbers.lhs_ragged_dimensions
        if ragged in batch:
            return read
        num_groups = equation.invars[2].aval.shape[-1]
        masked = self._masked(left, sizes, num_groups)
        if ragged in contracted:
            return [masked, self._masked(right, sizes, num_groups)]
        transposed = self._value(self.sizes[masked])
        self.operations.append(_Operation(name=_TRANSPOSED, read=[masked], made=[transposed]))
        return [transposed, right]

    def _masked(self, value: int, sizes: int, num_groups: int) -> int:
        """Return a value that holds a copy of another one for each group. The forward and backward passes share it."""
        key = (self._storage[value], self._storage[sizes])
        if key not in self._masks:
            self._masks[key] = made = self._value(num_groups * self.sizes[value])
            self.operations.append(_Operation(name="select_n", read=[value, sizes], made=[made]))
        return self._masks[key]

    def _add_call(self, equation: Any, inner: core.Jaxpr, known: dict[Any, int]) -> None:
        given = [known.get(atom) if isinstance(atom, core.Var) else None for atom in equation.invars]
        if equation.primitive.name in CHECKPOINTS and equation.params.get("differentiated"):
            read = [value for value in given if value is not None]
            made = [self._renamed(value) for value in read]
            self.operations.append(_Operation(name=_BARRIER, read=read, made=made))
            behind = iter(made)
            given = [None if value is None else next(behind) for value in given]
        constants = {var: self._value(_size(var)) for var in inner.constvars}
        own: dict[Any, int] = dict(constants)
        for var, value in zip(inner.invars, given, strict=True):
            own[var] = self._value(_size(var)) if value is None else value
            if value is None:
                constants[var] = own[var]
        self._boundary.update(constants.values())
        self._add(inner, own)
        for var, atom in zip(equation.outvars, inner.outvars, strict=True):
            known[var] = own[atom] if isinstance(atom, core.Var) else self._value(_size(var))

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
            reader.has_convolution = operation.has_convolution or operation.name == _CONVOLUTION
            reader.factors = operation.factors or frozenset(storage[value] for value in operation.read)
            reader.read = [*operation.read, *(value for value in reader.read if storage[value] != product)]
            for value in operation.read:
                readers[storage[value]].pop(id(operation), None)
                readers[storage[value]][id(reader)] = reader
        self.operations = left

    def _epilogue(self, product: _Operation, readers: Mapping[int, Mapping[int, _Operation]]) -> _Operation | None:
        """Return the elementwise operation that alone reads a product, if one kernel computes both; otherwise None."""
        value = self._storage[product.made[0]]
        if value in self._boundary or len(readers[value]) != 1:
            return None
        (reader,) = readers[value].values()
        is_convolution = product.has_convolution or product.name == _CONVOLUTION
        if is_convolution and reader.name not in _CONVOLUTION_EPILOGUES:
            return None
        return reader if reader.is_elementwise and self.sizes[reader.made[0]] <= self.sizes[value] else None

    def kernels(self) -> list[Kernel]:
        """Return the kernels, in the order of the program. Each computes the fused operations that it reads."""
        storage = self._storage
        written = self._written()
        sources: dict[int, tuple[list[int], set[int]]] = {}  # of a fused value: kernels, and the values that they read
        kernels: list[Kernel] = []
        for operation in self.operations:
            before: dict[int, None] = {}
            read: set[int] = set()
            for value in operation.read:
                makers, values = sources.get(value, ([], {storage[value]}))
                before.update(dict.fromkeys(makers))
                read |= values
            made = [storage[value] for value in operation.made if storage[value] in written]
            is_barrier = operation.name == _BARRIER
            if not made and not is_barrier:
                sources.update(dict.fromkeys(operation.made, (list(before), read)))
                continue
            for value in operation.made:
                sources[value] = ([len(kernels)], {storage[value]})
            kernels.append(
                Kernel(
                    before=tuple(before),
                    read=frozenset(read),
                    made=() if is_barrier else tuple(made),
                    replaced=frozenset(value for value in read if self._is_overwritten(value, operation)),
                    inner_bytes=operation.inner_bytes,
                )
            )
        return kernels

    def _written(self) -> set[int]:
        """Return the values in memory. An epilogue of a product reads a broadcast value without an array of it."""
        written = set(self._boundary)
        broadcast: set[int] = set()
        for operation in self.operations:
            made = {self._storage[value] for value in operation.made}
            if not operation.is_fused:
                written |= made
            elif operation.name == _BROADCAST:
                broadcast |= made
            if operation.is_kernel:
                read = {self._storage[value] for value in operation.read}
                written |= read - (broadcast - operation.factors) if operation.factors else read
        return written

    def peak_bytes(self, order: Sequence[Kernel]) -> int:
        """Return the largest sum of live values if kernels run in an order."""
        last = {value: place for place, kernel in enumerate(order) for value in kernel.read}
        change = [0] * (len(order) + 1)
        for start, kernel in enumerate(order):
            for value in kernel.made:
                if value in self._boundary:
                    continue
                stop = last.get(value, start)
                change[start] += self.sizes[value]
                change[stop if value in order[stop].replaced and stop > start else stop + 1] -= self.sizes[value]
        live, most = 0, 0
        for place, kernel in enumerate(order):
            live += change[place]
            most = max(most, live + kernel.inner_bytes)
        return most

    def _is_overwritten(self, value: int, reader: _Operation) -> bool:
        """Whether the last reader of a value may write its result in the value's place."""
        is_updated = reader.name in _UPDATES and value == self._storage[reader.read[0]]
        may_overwrite = is_updated or reader.is_elementwise or (bool(reader.factors) and value not in reader.factors)
        return may_overwrite and any(
            self.sizes[made] == self.sizes[value] for made in reader.made if self._storage[made] not in self._boundary
        )


def _size(var: Any) -> int:
    aval = var.aval
    if getattr(aval, "memory_space", None) == jax.memory.Space.Host:
        return 0
    itemsize = getattr(getattr(aval, "dtype", None), "itemsize", 0)
    return prod(aval.shape) * itemsize if itemsize else 0
