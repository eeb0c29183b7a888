"""The buckets of `DistributedDataParallel`, which it allocates in C++ where a dispatch mode does not see them.

Each device holds all parameters, gradients and optimizer state. Beside them lies one bucket of memory for each group of
gradients that are summed over the devices at once (`gradient_as_bucket_view=False`, the default). The reducer begins
with one bucket of all gradients. After the first backward pass it makes the buckets again: the order is that in which
gradients became ready, the first bucket is full at 1 MiB, the others at 25 MiB. PyTorch's own function divides them.

See Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.distributed import _DEFAULT_FIRST_BUCKET_BYTES, _compute_bucket_assignment_by_size

from memprof.errors import MemprofError
from memprof.sources.torch.tracer import StorageTracer

_BUCKET_BYTES = 25 << 20
_BROADCAST_BYTES = 250 << 20


class GradientBuckets:
    """The buckets of one device, as allocations of the trace."""

    def __init__(self, network: torch.nn.Module, tracer: StorageTracer) -> None:
        self._tracer = tracer
        self._names = {each: name for name, each in network.named_parameters() if each.requires_grad}
        self._network = network
        self._ready: dict[torch.Tensor, None] = {}
        self._is_rebuilt = False
        self._buckets: list[torch.Tensor] = []
        self._allocate([*self._names], [sys.maxsize])

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the order in which gradients become ready."""
        hooks = [each.register_post_accumulate_grad_hook(self._is_ready) for each in self._names]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def begin_forward(self) -> None:
        """Make the buckets again after the first backward pass, and broadcast the network's buffers.

        Raises:
            MemprofError: the first backward pass left out a parameter, which `DistributedDataParallel` refuses.
        """
        if self._ready and not self._is_rebuilt:
            missing = [name for each, name in self._names.items() if each not in self._ready]
            if missing:
                raise MemprofError(
                    f"the backward pass gives {missing[0]} no gradient, which DistributedDataParallel refuses: set its"
                    " requires_grad to False, or leave --mesh out"
                )
            self._is_rebuilt = True
            self._buckets.clear()
            self._allocate([*self._ready], [_DEFAULT_FIRST_BUCKET_BYTES, _BUCKET_BYTES])
        flat: list[torch.Tensor] = []  # broadcast from flat copies, of which two exist at a time
        with self._tracer.communicating("ddp.broadcast"):
            for part in _divided([*self._network.buffers()], [_BROADCAST_BYTES]):
                flat = [*flat[-1:], _flat(part)]

    def _is_ready(self, parameter: torch.Tensor) -> None:
        self._ready.setdefault(parameter)

    def _allocate(self, parameters: Sequence[torch.Tensor], limits: Sequence[int]) -> None:
        with self._tracer.communicating("ddp.bucket"):
            self._buckets = [_flat(part) for part in _divided(parameters, limits)]


def _divided(tensors: Sequence[torch.Tensor], limits: Sequence[int]) -> list[list[torch.Tensor]]:
    """Return the tensors in groups of one dtype, each of which is closed when it reaches its limit."""
    if not tensors:
        return []
    groups, _ = _compute_bucket_assignment_by_size([*tensors], [*limits])
    return [[tensors[number] for number in group] for group in groups]


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.empty(sum(each.numel() for each in tensors), dtype=tensors[0].dtype, device=tensors[0].device)
