"""Test whether a changed step computes the same as the original one.

A small step is run with and without the change on the CPU, with the same random values. For a larger step, traces may
prove that both have the same operations (see `same_operations.py`). Otherwise it is run too, with few examples if
necessary. A change that can be neither proved nor run is unproved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memprof.analysis.records.categories import Role
from memprof.analysis.records.rewrites import Donation
from memprof.sources.jax.checkpointing.liveness import estimated_peaks
from memprof.sources.jax.compile import traced_jaxpr
from memprof.sources.jax.targets.resolve import cpu
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.flops import count_entries, count_flops
from memprof.sources.jax.tracing.jitting import is_array, jit_step
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.advice.advice import Meaning
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.same_operations import Operations

_SMALL_BYTES, _SMALL_FLOPS = 256 << 20, 10**10  # run at once
# Run if no trace proves the change: 103 GFLOP take 3.4 s of a processor, arguments of 264 MiB 2.5 s (2 cores, 2026-11).
_MAX_BYTES, _MAX_FLOPS = 512 << 20, 10**11
# A step of few products may still take much memory and time: a simulation keeps a field for each of its steps.
_MAX_PEAK_BYTES, _MAX_ENTRIES = 4 << 30, 5 * 10**9
_NUM_EXAMPLES = 2
_RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE = 1e-4, 1e-5  # for float32; XLA adds recomputed values in another order
_ROWS = 64
_EXAMPLE_ROLES = (Role.BATCH, Role.KV_CACHE)
_CPU = cpu("where meaning is compared")
_ROUNDING = {"bfloat16": 2**-6, "float16": 2**-8}


class MeaningCheck:
    """Compares changed steps with the original one, which is traced and run at most once."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def of(self, change: Change) -> Meaning:
        """Return whether a change leaves the numbers of the step unchanged."""
        if not change.keeps_numbers:
            return Meaning.DIFFERENT
        spec, flops = self._step.spec, self._step.report.flops
        is_small = flops <= _SMALL_FLOPS and _num_bytes(spec) <= _SMALL_BYTES
        found = self._compare_runs(change) if is_small else None
        if found in (Meaning.EQUAL, Meaning.CLOSE):
            return found
        if self._has_same_operations(change):
            return Meaning.SAME_OPERATIONS
        if found is None:
            found = self._compare_runs(change)
        return Meaning.SAME_OPERATIONS if found is Meaning.UNPROVED and change.is_proved else found

    def _has_same_operations(self, change: Change) -> bool:
        if change.rewrite is not None and not isinstance(change.rewrite, Donation):
            return False  # the change replaces operations
        try:
            return self._operations.are_those_of(change.spec, change.around)
        except Exception:  # raised by the user's code, which may depend on its jits
            return False

    def _compare_runs(self, change: Change) -> Meaning:
        small = self._small
        if small is None:
            return Meaning.UNPROVED
        try:
            spec = replace(change.on_cpu or change.spec, args=small.args, kwargs=small.kwargs)
            results = results_of(spec, change.around)
            meaning = compared(self._results, results)
            if meaning is Meaning.DIFFERENT and self._has_close_changes(results):
                meaning = Meaning.CLOSE
            # A rewrite may find nothing to change in the small instance, which then proves nothing.
            is_rewrite = change.rewrite is not None and not isinstance(change.rewrite, Donation)
            is_conclusive = (
                meaning is not Meaning.EQUAL or not is_rewrite or _operation_counts(spec) != _operation_counts(small)
            )
            return meaning if is_conclusive else Meaning.UNPROVED
        except Exception:  # raised by the user's code, on a processor that it may not support
            return Meaning.UNPROVED

    def _has_close_changes(self, results: list[Any]) -> bool:
        """Whether a 16-bit step changes its arrays by the same amounts, within 16-bit rounding.

        A result is taken for an update of the nearest argument of the same shape.
        """
        assert self._small is not None
        rounding = _largest_rounding(self._small)
        with _on_cpu():
            leaves = [leaf for leaf in jax.tree.leaves(random_arguments(self._small)) if is_array(leaf)]
        old = [_as_float(leaf) for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]

        def is_close(before: Any, after: Any) -> bool:
            if _is_close(before, after):
                return True
            before, after = _as_float(before), _as_float(after)
            changes = [np.linalg.norm(before - each) for each in old if each.shape == before.shape]
            return bool(np.linalg.norm(before - after) <= rounding * min([*changes, np.linalg.norm(before)]))

        return rounding > 0 and all(is_close(*each) for each in zip(self._results, results, strict=True))

    @cached_property
    def _small(self) -> StepSpec | None:
        return small_instance(self._step)

    @cached_property
    def _operations(self) -> Operations:
        return Operations(self._step.spec, self._step.target)

    @cached_property
    def _results(self) -> list[Any]:
        assert self._small is not None
        return results_of(self._small, nullcontext)


def small_instance(step: Step) -> StepSpec | None:
    """Return a step that runs here in seconds: the step itself, or with few examples; None if neither is possible.

    Examples lie along an axis of the same length in all arrays of the batch. If two examples are still too large, other
    common axes of the batch are shortened, too: minibatches, time.
    """
    spec = step.spec
    if step.report.flops <= _MAX_FLOPS and _num_bytes(spec) <= _MAX_BYTES and _can_run(spec, _Work.of_step(spec)):
        return spec
    leaves = jax.tree.leaves((spec.args, dict(spec.kwargs)))
    kinds = {(leaf.shape, leaf.dtype) for leaf in step.report.arguments if leaf.role in _EXAMPLE_ROLES and leaf.shape}
    numbers = frozenset(number for number, leaf in enumerate(leaves) if _shape_and_dtype(leaf) in kinds)
    lengths = _common_lengths(step)
    if _num_bytes(reduce(partial(_shortened, numbers=numbers), lengths, spec)) > _MAX_BYTES:
        return None
    for length in lengths:
        shorter = _shortened(spec, length, numbers=numbers)
        work = _Work.of_step(shorter)
        if work is not None:
            spec = shorter
            if _can_run(spec, work):
                return spec
    return None


def _common_lengths(step: Step) -> list[int]:
    """Return the axis lengths that all arrays of the batch have in common, first axes first."""
    shapes = [leaf.shape for leaf in step.report.arguments if leaf.role is Role.BATCH and prod(leaf.shape) > 1]
    axes = range(max(map(len, shapes), default=0))
    lengths = dict.fromkeys(shape[axis] for axis in axes for shape in shapes if axis < len(shape))
    return [each for each in lengths if each > _NUM_EXAMPLES and all(each in shape for shape in shapes)]


def _shortened(spec: StepSpec, length: int, *, numbers: frozenset[int]) -> StepSpec:
    """Return a step with two entries along each axis of a length, in the argument leaves with these numbers."""

    def cut(leaf: Any) -> Any:
        shape = tuple(_NUM_EXAMPLES if each == length else each for each in leaf.shape)
        return jax.ShapeDtypeStruct(shape, leaf.dtype)

    leaves, structure = jax.tree.flatten((spec.args, dict(spec.kwargs)))
    cut_leaves = [cut(leaf) if number in numbers else leaf for number, leaf in enumerate(leaves)]
    args, kwargs = jax.tree.unflatten(structure, cut_leaves)
    return replace(spec, args=args, kwargs=kwargs)


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of a step here.

    Attributes:
        entries: the number of entries of all arrays that it computes.
        peak_bytes: estimated bytes at its peak, besides its arguments and results.
    """

    flops: int
    entries: int
    peak_bytes: int

    @classmethod
    def of_step(cls, spec: StepSpec) -> _Work | None:
        """Return the work of a step, or None if it cannot be traced."""
        try:
            with jit_adapter.traced_anew():
                traced = traced_jaxpr(spec, _CPU)
                peak_bytes = min(estimated_peaks(traced.jaxpr))
                return cls(count_flops(traced).total(), count_entries(traced), peak_bytes)
        except Exception:  # raised by the user's code, which may be made for the original shapes
            return None


def _shape_and_dtype(leaf: Any) -> tuple[tuple[int, ...], str] | None:
    return (tuple(leaf.shape), str(leaf.dtype)) if is_array(leaf) else None


def results_of(spec: StepSpec, around: Callable[[], AbstractContextManager[object]]) -> list[Any]:
    """Return the arrays that a step returns for random values, and those that it leaves in its arguments."""
    with _on_cpu(), around(), jit_adapter.traced_anew():
        args = random_arguments(spec)
        step = jit_step(replace(spec, args=args))
        results = step.fn(*step.args, **step.kwargs)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(results) if is_array(leaf)]


def _on_cpu() -> AbstractContextManager[Any]:
    device: AbstractContextManager[Any] = jax.default_device(jax.local_devices(backend="cpu")[0])
    return device


def random_arguments(spec: StepSpec) -> Any:
    """Return random values of a step's arguments, the same at each call."""
    random = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: _random_value(leaf, random), spec.args)


def _largest_rounding(spec: StepSpec) -> float:
    """Return the rounding of the narrowest 16-bit floats that a step computes with; 0 if there are none."""
    with jit_adapter.traced_anew():
        found = jit_adapter.all_equations(traced_jaxpr(spec, _CPU).jaxpr)
        dtypes = {str(getattr(var.aval, "dtype", "")) for each in found for var in each.outvars}
    return max((_ROUNDING.get(each, 0.0) for each in dtypes), default=0.0)


def _operation_counts(spec: StepSpec) -> Counter[tuple[str, str]]:
    """Return how often a step has each operation, by its name and results."""
    with jit_adapter.traced_anew():
        found = jit_adapter.all_equations(traced_jaxpr(spec, _CPU).jaxpr)
        return Counter((each.primitive.name, str([var.aval for var in each.outvars])) for each in found)


def compared(before: list[Any], after: list[Any]) -> Meaning:
    """Return whether two results of a step are the same."""
    if not before or [each.shape for each in before] != [each.shape for each in after]:
        return Meaning.UNPROVED
    pairs = list(zip(before, after, strict=True))
    if not any(np.isfinite(_as_float(old)).any() for old, _ in pairs):
        return Meaning.UNPROVED
    if all(np.array_equal(old, new, equal_nan=old.dtype.kind == "f") for old, new in pairs):
        return Meaning.EQUAL
    return Meaning.CLOSE if all(_is_close(old, new) for old, new in pairs) else Meaning.DIFFERENT


def _is_close(old: Any, new: Any) -> bool:
    rounding = _ROUNDING.get(str(old.dtype), 0.0)
    old, new = _as_float(old), _as_float(new)
    scale = max(float(np.max(np.abs(old), initial=0.0, where=np.isfinite(old))), 1.0)
    return bool(
        np.allclose(
            old,
            new,
            rtol=max(_RELATIVE_TOLERANCE, rounding),
            atol=max(_ABSOLUTE_TOLERANCE, rounding) * scale,
            equal_nan=True,
        )
    )


def _as_float(array: Any) -> Any:
    return np.asarray(jnp.asarray(array).astype(jnp.float32))


def _can_run(spec: StepSpec, work: _Work | None) -> bool:
    return (
        work is not None
        and work.flops <= _MAX_FLOPS
        and work.entries <= _MAX_ENTRIES
        and work.peak_bytes <= _MAX_PEAK_BYTES
        and _num_bytes(spec) <= _MAX_BYTES
    )


def _num_bytes(spec: StepSpec) -> int:
    leaves = [leaf for leaf in jax.tree.leaves((spec.args, dict(spec.kwargs))) if is_array(leaf)]
    return sum(prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def _random_value(leaf: Any, random: np.random.Generator) -> Any:
    """Return an array of a leaf's shape; floats are small and positive, so that roots and logarithms are defined.

    The rows of a large matrix are smaller, so that many layers do not overflow.
    """
    if not is_array(leaf):
        return leaf
    dtype, shape = leaf.dtype, leaf.shape
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        keys = jax.random.split(jax.random.key(0), max(prod(shape), 1))
        return keys.reshape(shape)
    if jnp.issubdtype(dtype, jnp.floating):
        num_rows = shape[-2] if len(shape) > 1 else 1
        return jnp.asarray(random.uniform(0.01, 0.1, shape) / max(1.0, num_rows / _ROWS), dtype)
    return jnp.asarray(random.integers(0, 2, shape), dtype)
