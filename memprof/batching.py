"""How much can be done at once: two small functions for programs that choose their batch by themselves.

They are meant to last: their names, arguments and results stay as they are.

    def needed(batch_size):
        batch = jax.ShapeDtypeStruct((batch_size, 1024), "float32")
        return memprof.peak(step, state, batch, target="h100-80gb", donate_argnums=0)

    memprof.largest(needed, range(8, 4097, 8), memory="75GiB")
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from memprof.amounts import parse_bytes
from memprof.api import profile
from memprof.capture.tracing.step_checks import shown
from memprof.errors import MemprofError


def peak(
    fn: Callable[..., Any],
    /,
    *args: Any,
    target: str | Path | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    **kwargs: Any,
) -> int:
    """The device memory that a call takes, in bytes: arguments, results, temporaries and constants, at once.

    It is the footprint of `memprof.profile`. The call is compiled, not run; a second one like it costs the tracing
    alone (see `memprof cache`). On a mesh it is that of one device.

    Args:
        fn: the function; one that is jitted keeps its own options.
        args, kwargs: its arguments: pytrees of arrays or of `jax.ShapeDtypeStruct`.
        target, donate_argnums, static_argnums: as for `memprof.profile`.

    Raises:
        MemprofError: a mistake in what was asked for, in one sentence.
        Exception: whatever the function raises while it is traced.
    """
    compiled = profile(fn, *args, target=target, donate_argnums=donate_argnums, static_argnums=static_argnums, **kwargs)
    return compiled.footprint_bytes


def largest(fn: Callable[[int], int], sizes: Sequence[int], memory: int | str) -> int | None:
    """The largest of some sizes that takes no more than the memory; None where not even the smallest one does.

    Args:
        fn: from a size to its bytes; they do not shrink as the size grows. Of n sizes about log2(n) are asked for.
        sizes: in ascending order: `range(1, 1025)`, `[8, 16, 32, 64]`.
        memory: bytes, or a text such as `75GiB`. Leave some of the device's memory to what is not XLA's.

    Raises:
        MemprofError: the memory cannot be read, or the sizes are no ascending whole numbers.
    """
    if not isinstance(sizes, Sequence) or any(not isinstance(size, int) for size in sizes):
        raise MemprofError(f"sizes is {shown(sizes)}, but a sequence of whole numbers was expected: range(8, 1025, 8)")
    if any(after <= before for before, after in pairwise(sizes)):
        raise MemprofError(f"sizes is {shown(sizes)}, but each must be larger than the one before it")
    memory_bytes = parse_bytes(memory) if isinstance(memory, str) else memory
    if not isinstance(memory_bytes, int) or memory_bytes < 1:
        raise MemprofError(f"memory is {shown(memory)}, but bytes were expected, or a text such as '75GiB'")
    num_fitting = bisect_right(sizes, memory_bytes, key=fn)
    return sizes[num_fitting - 1] if num_fitting else None
