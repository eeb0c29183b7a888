"""FSDP2 (`fully_shard`) on a process group of absent devices.

PyTorch's own code runs: each entry of a `ModuleList` is a group of parameters, and the rest of the model is one more.
The collectives are those of PyTorch's fake process group, which sends nothing, so the trace is that of one device. That
code allocates the flat buffers, and gathers and releases the parameters.

A freed parameter keeps its storage object and resizes it to 0 without an operation, so resizes are observed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from memprof.analysis.records.categories import Category
from memprof.errors import MemprofError
from memprof.sources.torch.tracer import StorageTracer

# The functions that allocate, in the module that calls them: their buffers' name and category.
_GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_BUFFERS = {
    "foreach_all_gather": ("fsdp.all_gather", Category.COLLECTIVES),
    "foreach_all_gather_copy_out": ("fsdp.unsharded", Category.GATHERED_PARAMS),
    "foreach_reduce": ("fsdp.reduce_scatter", Category.COLLECTIVES),
}

# Optimizers with in-place operations or kernels that DTensor does not have (torch 2.13); the last two are ours.
_WITHOUT_SHARDS = ("Adafactor", "Rprop", "Adam8bit", "GaLore")


class _Root(nn.Module):
    """The whole forward pass as a module, whose hooks gather the parameters outside the blocks."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


@contextmanager
def process_group(num_devices: int) -> Iterator[DeviceMesh]:
    """Make a process group of absent devices. Enter it outside `FakeTensorMode`.

    Raises:
        MemprofError: this process already belongs to a job of several.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if distributed.is_initialized():
        raise MemprofError("this process has a process group already: trace the step in a process of its own")
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_devices)
    try:
        yield init_device_mesh("cpu", (num_devices,))
    finally:
        distributed.destroy_process_group()


def shard(network: nn.Module, optimizers: Any, mesh: DeviceMesh) -> nn.Module:
    """Divide the parameters of a network. Its optimizers get the divided parameters. Returns the root to call.

    Raises:
        MemprofError: an optimizer cannot update divided parameters.
    """
    from torch.distributed.fsdp import fully_shard

    for optimizer in optimizers:
        if type(optimizer).__name__ in _WITHOUT_SHARDS:
            raise MemprofError(
                f"{type(optimizer).__name__} does not update parameters that FSDP2 divides, because DTensor lacks its"
                " operations: use --mesh dp=8, or another optimizer"
            )
    whole = dict(network.named_parameters())
    for module in network.modules():
        if isinstance(module, nn.ModuleList):
            for block in module:
                fully_shard(block, mesh=mesh)
    root = _Root(network)
    fully_shard(root, mesh=mesh)
    parts = {whole[name]: part for name, part in network.named_parameters()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [parts.get(each, each) for each in group["params"]]
    return root


@contextmanager
def observed(tracer: StorageTracer) -> Iterator[None]:
    """Report FSDP's buffers to the tracer, and each time their storages are freed and allocated again."""
    resize = torch.UntypedStorage.resize_

    def resized(storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        tracer.resized(storage)
        return result

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.UntypedStorage, "resize_", resized))
        module = __import__(_GROUP, fromlist=["_"])
        for function, (name, category) in _BUFFERS.items():
            stack.enter_context(
                patch.object(module, function, _named(getattr(module, function), tracer, name, category))
            )
        yield


def _named(function: Callable[..., Any], tracer: StorageTracer, name: str, category: Category) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with tracer.communicating(name, category):
            return function(*args, **kwargs)

    return call
