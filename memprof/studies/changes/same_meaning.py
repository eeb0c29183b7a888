"""Test whether a changed step computes the same: both are run on the CPU, with the same small random values.

If a step is too large for that, it is run with two examples, provided that its batch can be cut. If a step cannot be
run, its meaning is unproved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memprof.analysis.records.categories import Role
from memprof.sources.jax.compile import traced_jaxpr
from memprof.sources.jax.targets.resolve import cpu
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.jitting import is_array, jit_step
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.advice.advice import Meaning
from memprof.studies.changes.change import Change, Step

_MAX_BYTES, _MAX_FLOPS = 256 << 20, 10**10
_NUM_EXAMPLES = 2
_RELATIVE, _ABSOLUTE = 1e-4, 1e-5  # for float32; XLA adds recomputed values in another order
_ROWS = 64
_COARSE = {"bfloat16": 2**-6, "float16": 2**-8}


def small_instance(step: Step) -> StepSpec | None:
    """Return a step that runs here in a moment: the step itself, or with two examples; None if neither is possible."""
    if _is_small(step.spec, step.report.flops):
        return step.spec
    examples = [
        leaf.shape[0] for leaf in step.report.arguments if leaf.role is Role.BATCH and leaf.shape and leaf.shape[0] > 1
    ]
    if not examples or len(set(examples)) > 1 or any(leaf.role is Role.KV_CACHE for leaf in step.report.arguments):
        return None
    batches = {(leaf.shape, leaf.dtype) for leaf in step.report.arguments if leaf.role is Role.BATCH and leaf.shape}
    cut = replace(step.spec, args=jax.tree.map(lambda leaf: _cut(leaf, batches), step.spec.args))
    return cut if _is_small(cut, step.report.flops * _NUM_EXAMPLES // examples[0]) else None


def meaning_of(change: Change, small: StepSpec | None, before: Callable[[], list[Any]]) -> Meaning:
    """Return whether a change leaves the numbers of a step unchanged.

    Args:
        small: the step to run in place of the original one.
        before: returns the results of `small` without the change.
    """
    if not change.keeps_numbers:
        return Meaning.DIFFERENT
    if small is None:
        return Meaning.UNPROVED
    try:
        spec = replace(change.on_cpu or change.spec, args=small.args)
        meaning = _compared(before(), results_of(spec, change.around))
        # A rewrite may find nothing to change in the small instance, which then proves nothing.
        is_compared = meaning is not Meaning.EQUAL or change.rewrite is None or _operations(spec) != _operations(small)
        return meaning if is_compared else Meaning.UNPROVED
    except Exception:  # raised by the user's code, on a processor that it may not support
        return Meaning.UNPROVED


def results_of(spec: StepSpec, around: Callable[[], AbstractContextManager[object]]) -> list[Any]:
    """Return the arrays that a step returns for random values, and those that it leaves in its arguments."""
    random = np.random.default_rng(0)
    with jax.default_device(jax.local_devices(backend="cpu")[0]), around(), jit_adapter.traced_anew():
        args = jax.tree.map(lambda leaf: _value(leaf, random), spec.args)
        step = jit_step(replace(spec, args=args))
        results = step.fn(*step.args, **step.kwargs)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(results) if is_array(leaf)]


def _operations(spec: StepSpec) -> Counter[tuple[str, str]]:
    """Return how often a step has each operation, by its name and results."""
    with jit_adapter.traced_anew():
        found = jit_adapter.all_equations(traced_jaxpr(spec, cpu("where meaning is compared")).jaxpr)
        return Counter((each.primitive.name, str([var.aval for var in each.outvars])) for each in found)


def _compared(before: list[Any], after: list[Any]) -> Meaning:
    if not before or [each.shape for each in before] != [each.shape for each in after]:
        return Meaning.UNPROVED
    pairs = list(zip(before, after, strict=True))
    if not any(np.isfinite(_as_float(old)).any() for old, _ in pairs):
        return Meaning.UNPROVED
    if all(np.array_equal(old, new, equal_nan=old.dtype.kind == "f") for old, new in pairs):
        return Meaning.EQUAL
    return Meaning.CLOSE if all(_is_close(old, new) for old, new in pairs) else Meaning.DIFFERENT


def _is_close(old: Any, new: Any) -> bool:
    coarse = _COARSE.get(str(old.dtype), 0.0)
    old, new = _as_float(old), _as_float(new)
    scale = max(float(np.max(np.abs(old), initial=0.0, where=np.isfinite(old))), 1.0)
    return bool(np.allclose(old, new, rtol=max(_RELATIVE, coarse), atol=max(_ABSOLUTE, coarse) * scale, equal_nan=True))


def _as_float(array: Any) -> Any:
    return np.asarray(jnp.asarray(array).astype(jnp.float32))


def _is_small(spec: StepSpec, flops: int) -> bool:
    leaves = [leaf for leaf in jax.tree.leaves((spec.args, dict(spec.kwargs))) if is_array(leaf)]
    return flops <= _MAX_FLOPS and sum(prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves) <= _MAX_BYTES


def _cut(leaf: Any, batches: set[tuple[tuple[int, ...], str]]) -> Any:
    if not is_array(leaf) or (tuple(leaf.shape), str(leaf.dtype)) not in batches:
        return leaf
    return jax.ShapeDtypeStruct((_NUM_EXAMPLES, *leaf.shape[1:]), leaf.dtype)


def _value(leaf: Any, random: np.random.Generator) -> Any:
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
