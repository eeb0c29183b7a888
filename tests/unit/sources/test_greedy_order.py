"""The greedy order of kernels: small graphs whose schedule is clear by hand."""

from __future__ import annotations

from memprof.sources.jax.checkpointing.greedy_order import Kernel, greedy_order


def _kernel(*before: int, made: int) -> Kernel:
    """Return a kernel that makes a value of its own number, from those of the kernels before it."""
    return Kernel(before=before, read=frozenset(before), made=(made,))


def test_the_greedy_order_runs_next_what_frees_the_most_bytes() -> None:
    """Kernel 2 alone still reads value 0: it frees 100 bytes and writes 1. Kernel 1 writes 50, and frees none."""
    kernels = [_kernel(made=0), _kernel(made=1), _kernel(0, made=2), _kernel(1, 2, made=3)]
    assert greedy_order(kernels, [10, 50, 1, 0], {3}) == [0, 2, 1, 3]


def test_the_greedy_order_delays_what_reads_a_value_that_others_need() -> None:
    """Both kernels read value 0, so neither frees it yet; the one that writes less comes first."""
    kernels = [_kernel(made=0), _kernel(0, made=1), _kernel(0, made=2), _kernel(1, 2, made=3)]
    assert greedy_order(kernels, [100, 50, 1, 0], {3}) == [0, 2, 1, 3]


def test_the_greedy_order_frees_no_result() -> None:
    """Value 0 is a result, so its last reader frees nothing, and kernel 1, which writes less, precedes it."""
    kernels = [_kernel(made=0), _kernel(made=1), _kernel(0, made=2)]
    assert greedy_order(kernels, [10, 20, 30], {0, 2}) == [0, 1, 2]
