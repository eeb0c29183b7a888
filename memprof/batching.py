"""Choose a batch size: `peak` and `largest`, two small functions for programs that pick their batch themselves.

Both are stable: their names, arguments and results will not change.

    def needed(batch_size):
        batch = jax.ShapeDtypeStruct((batch_size, 1024), "float32")
        return memprof.peak(step, state, batch, target="h100-80gb", donate_argnums=0)

    memprof.largest(needed, range(8, 4097, 8), memory="75GiB")

    chunk = memprof.largest(lambda size, xs: jax.lax.map(f, xs, batch_size=size), range(1, 1025), "8GiB", xs)
    chunk = memprof.largest(jax.vmap(f), 0, "8GiB", xs)
"""

from __future__ import annotations

import functools
import hashlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memprof.amounts import parse_bytes
from memprof.api import profile
from memprof.errors import MemprofError
from memprof.sources.jax.tracing.step_checks import shown

if TYPE_CHECKING:
    from memprof.sources.jax.tracing.step import StepSpec
    from memprof.workloads.user.train_spec import TrainSpec


def peak(
    fn: Callable[..., Any] | StepSpec | TrainSpec,
    /,
    *args: Any,
    target: str | Path | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    **kwargs: Any,
) -> int:
    """Return the device memory that a call needs, in bytes: arguments, results, temporaries and constants together.

    This is the footprint that `memprof.profile` reports; on a mesh, the footprint on one device. The call is compiled,
    not run. A repeated call is only traced, because its plan is cached (see `memprof cache`).

    Args:
        fn: the function; a jitted function keeps its own options.
        args, kwargs: the arguments of the call: pytrees of arrays or of `jax.ShapeDtypeStruct`.
        target, donate_argnums, static_argnums: as for `memprof.profile`.

    Returns:
        The footprint in bytes.

    Raises:
        MemprofError: an argument is invalid; the message is one sentence.
        Exception: any error that the function raises while it is traced.
    """
    compiled = profile(fn, *args, target=target, donate_argnums=donate_argnums, static_argnums=static_argnums, **kwargs)
    return compiled.footprint_bytes


def largest(
    fn: Callable[..., Any],
    sizes: Sequence[int] | int,
    memory: int | str,
    *args: Any,
    target: str | Path | None = None,
) -> int | None:
    """Return the largest size that fits in the memory; None if even the smallest does not fit.

    Without `args`, `fn` returns the bytes that a size needs. With `args`, `memprof.peak` measures the call for each
    size, and the result is cached: the same question compiles nothing.

    A binary search evaluates about log2(n) of n sizes.

    Args:
        fn: without `args`, a function from a size to bytes, which must not decrease as the size grows. With `args`,
            the function to compile, called as `fn(size, *args)`, or as `fn(*args)` if `sizes` is an axis.
        sizes: candidate sizes in ascending order, for example `range(1, 1025)` or `[8, 16, 32, 64]`; or, with `args`,
            an axis that all arrays have in the same length. Candidates are then all sizes from 1 to that length.
        memory: the limit in bytes, or a text such as `75GiB`. Reserve some of the device's memory for users other
            than XLA.
        args: pytrees of arrays or `jax.ShapeDtypeStruct`s; only shapes and dtypes are used.
        target: as for `memprof.profile`.

    Raises:
        MemprofError: `memory` cannot be parsed, `sizes` is not an ascending sequence of whole numbers, or the arrays
            do not share the axis in one length.
        Exception: any error that the function raises while it is traced.
    """
    memory_bytes = parse_bytes(memory) if isinstance(memory, str) else memory
    if isinstance(sizes, int) and args:
        return _largest_call(functools.partial(_along, fn, args, sizes), _lengths(args, sizes), memory_bytes, target)
    if not isinstance(sizes, Sequence) or any(not isinstance(size, int) for size in sizes):
        raise MemprofError(f"sizes is {shown(sizes)}, but a sequence of whole numbers was expected: range(8, 1025, 8)")
    if any(after <= before for before, after in pairwise(sizes)):
        raise MemprofError(f"sizes is {shown(sizes)}, but each must be larger than the one before it")
    if not args:
        return _largest(fn, sizes, memory_bytes)
    return _largest_call(functools.partial(_with_size, fn, args), sizes, memory_bytes, target)


def _largest(needed: Callable[[int], int], sizes: Sequence[int], memory_bytes: int) -> int | None:
    if not isinstance(memory_bytes, int) or memory_bytes < 1:
        raise MemprofError(f"memory is {shown(memory_bytes)}, but bytes were expected, or a string such as '75GiB'")
    num_fitting = bisect_right(sizes, memory_bytes, key=needed)
    return sizes[num_fitting - 1] if num_fitting else None


def _largest_call(
    call: Callable[[int], StepSpec], sizes: Sequence[int], memory_bytes: int, target: str | Path | None
) -> int | None:
    """Return the largest size whose call fits, from the cache if the same question was answered before."""
    from memprof.sources.jax.compile import key_of_step
    from memprof.sources.jax.targets.mesh import target_of_step
    from memprof.sources.jax.targets.resolve import resolve_asked
    from memprof.sources.jax.xla.plan_cache import PlanCache

    if not sizes:
        return None
    chosen = target_of_step(call(sizes[0]), resolve_asked(None if target is None else str(target)))
    ends = [key_of_step(call(size), chosen) for size in dict.fromkeys((sizes[0], sizes[-1]))]
    question = repr((*ends, list(sizes), memory_bytes, chosen.description))
    key, cache = hashlib.sha256(question.encode()).hexdigest(), PlanCache.of_user()
    known = cache.find_note(key)
    if known is not None and known.isdigit():
        return int(known) or None

    def needed(size: int) -> int:
        spec = call(size)
        return peak(spec.fn, *spec.args, target=target)

    found = _largest(needed, sizes, memory_bytes)
    cache.keep_note(key, str(found or 0).encode())
    return found


def _with_size(fn: Callable[..., Any], args: tuple[Any, ...], size: int) -> StepSpec:
    from memprof.sources.jax.tracing.step import StepSpec

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        return fn(size, *args)

    return StepSpec(call, args)


def _along(fn: Callable[..., Any], args: tuple[Any, ...], axis: int, size: int) -> StepSpec:
    import jax

    from memprof.sources.jax.tracing.step import StepSpec

    def cut(leaf: Any) -> Any:
        shape = list(leaf.shape)
        shape[axis] = size
        return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)

    return StepSpec(fn, tuple(jax.tree.map(cut, args)))


def _lengths(args: tuple[Any, ...], axis: int) -> range:
    """Return the sizes from 1 to the length of an axis.

    Raises:
        MemprofError: some array lacks the axis, or its lengths differ.
    """
    import jax

    shapes = [tuple(getattr(leaf, "shape", ())) for leaf in jax.tree.leaves(args)]
    lengths = {shape[axis] if -len(shape) <= axis < len(shape) else 0 for shape in shapes}
    if len(lengths) != 1 or lengths == {0}:
        raise MemprofError(
            f"axis {axis} has no single length in the arguments: give only arrays that have it, and close over the "
            "others"
        )
    return range(1, int(lengths.pop()) + 1)
