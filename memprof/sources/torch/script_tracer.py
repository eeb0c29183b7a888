"""The tracer of an unmodified script. It distinguishes the host from an absent GPU.

    with mode, ScriptTracer(places, mode) as tracer:
        ...the script...

Tensors have the place that the script gives them: `device="cuda"` and `.to("cuda")` put them on the GPU, and results of
operations on GPU tensors are there, too. If a script never names a GPU, all of its tensors are assumed to be on one.
Host tensors made from data (NumPy arrays, numbers, indices) are real, because a script may read their values; all
others are fake.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from memprof.analysis.records.categories import Role
from memprof.analysis.records.trace import TraceEvent
from memprof.sources.torch.places import Places
from memprof.sources.torch.tracer import Storage, StorageTracer, number_like

GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
# Indices, labels and masks that a script makes on the host are real up to this size.
_LARGEST_REAL_BYTES = 256 << 20


class ScriptTracer(StorageTracer):
    """A storage tracer that follows the places of a script's tensors.

    Attributes:
        names_gpu: the script has named a GPU.
        is_inside: PyTorch itself is running an operation; for it, all tensors are on the CPU.
    """

    _unseen_on_host = True

    def __init__(self, places: Places, mode: FakeTensorMode) -> None:
        super().__init__(places)
        self.names_gpu = False
        self.is_inside = False
        self._mode = mode
        self._fakes = WeakTensorKeyDictionary()  # the fakes of real tensors
        self._wanted_on_host: bool | None = None
        self._is_moving = False
        self._events_of_all: list[TraceEvent] = []
        self._kept_on_host: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        wanted = self._placed_on_host
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        device = kwargs.get("device")
        if device is not None:
            # Autograd and autocast pass the device of a tensor, which is the CPU for PyTorch.
            if wanted is None and (is_gpu(device) or not tensors):
                wanted = not is_gpu(device)
            self.names_gpu |= is_gpu(device)
            kwargs["device"] = HOST
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"], wanted = False, True
        with self._having("is_inside", True):
            if wanted is not False and not any(isinstance(each, FakeTensor) for each in tensors):
                real = self._real(func, args, kwargs, has_inputs=bool(tensors))
                if real is not None:
                    return real
            args, kwargs = tree_map(self.fake, (args, kwargs))
            self._wanted_on_host = wanted
            return super().__torch_dispatch__(func, types, args, kwargs)

    def _real(self, func: Any, args: Any, kwargs: Any, *, has_inputs: bool) -> Any:
        """Compute an operation on host data, or return None if it must be traced instead."""
        if not has_inputs:
            found = func(*args, **kwargs)
            if not isinstance(found, torch.Tensor) or found.is_floating_point() or found.is_complex():
                return None
            if found.untyped_storage().nbytes() > _LARGEST_REAL_BYTES:
                return None
        with _disable_current_modes():
            return func(*args, **kwargs)

    def fake(self, value: Any) -> Any:
        """Return a fake for a real tensor, with the same lifetime; return anything else unchanged."""
        if not isinstance(value, torch.Tensor):
            return value
        if isinstance(value, FakeTensor):
            if self._record_of(value) is None:  # made by a data loader
                self.note_batch(value)
            return value
        if value not in self._fakes:
            with self._having("is_inside", True):
                self._fakes[value] = self._mode.from_tensor(value)
            self.note_batch(self._fakes[value])
        return self._fakes[value]

    def fake_buffers(self, network: torch.nn.Module) -> None:
        """Replace a network's real buffers by fake ones."""
        for module in network.modules():
            module._buffers.update({name: self.fake(buffer) for name, buffer in module._buffers.items()})

    def storage_of(self, tensor: torch.Tensor) -> Storage:
        """Return the record of a tensor's storage. A real tensor, such as an optimizer's counter, stays on the host."""
        storage = super().storage_of(tensor)
        if not isinstance(tensor, FakeTensor):
            self._kept_on_host.add(storage.number)
        return storage

    def is_on_gpu(self, tensor: torch.Tensor) -> bool:
        """Whether the script has put this tensor on the GPU."""
        found = self._record_of(tensor) if isinstance(tensor, FakeTensor) else None
        return found is not None and not found.is_on_host

    def placed(self, tensor: torch.Tensor, *, on_host: bool) -> torch.Tensor:
        """Return a tensor on the host or on the GPU: itself if it is already there, else a copy."""
        self.names_gpu |= not on_host
        if on_host == (not self.is_on_gpu(tensor)):
            return tensor
        if self._is_moving and not on_host:
            tensor = self.fake(tensor)
            self.move_to_device(tensor)
            return tensor
        with self.placing(on_host=on_host):
            copy = self.fake(tensor).clone()
        if not on_host and not copy.requires_grad:
            self.note_batch(copy)
        return copy

    def moving(self) -> AbstractContextManager[None]:
        """Move tensors to the GPU without leaving a copy behind, as for the parameters of a moved module."""
        return self._having("_is_moving", True)

    def move_to_device(self, tensor: torch.Tensor) -> None:
        """Record that a tensor moves from the host to the GPU."""
        storage = self.storage_of(tensor)
        if storage.is_on_host:
            storage.is_on_host = False
            if storage.role is Role.BATCH:
                storage.role, storage.path = None, ""
            if self.step_starts:
                self.events.append(TraceEvent(self.position, storage.number, is_birth=True))

    def keep_on_host(self, tensor: torch.Tensor) -> None:
        """Keep a data set's tensor on the host, because only batches are copied to a GPU."""
        if isinstance(tensor, FakeTensor):
            self._kept_on_host.add(self.storage_of(tensor).number)

    def finish(self) -> None:
        """End the trace. If the script named no GPU, its tensors on the host count as on the GPU."""
        if not self.names_gpu:
            self.events = [each for each in self._events_of_all if each.value not in self._kept_on_host]
            for storage in self.storages:
                storage.is_on_host = storage.number in self._kept_on_host

    def _number(self, func: Any, tensor: torch.Tensor, inputs: Sequence[Storage]) -> bool | int | float:
        """Return a value, or a placeholder: False for a flag, 1 for a loss or count, so that division works."""
        try:
            return func(tensor)
        except DataDependentOutputException:
            return number_like(tensor, 0 if tensor.dtype is torch.bool else 1)

    def note_batch(self, tensor: torch.Tensor) -> None:
        """Record a tensor as data. A network that turns out to own it overrides this."""
        storage = self.storage_of(tensor)
        if storage.role is None and tensor.dim():
            storage.role, storage.path = Role.BATCH, "batch"

    def _makes_on_host(self, func: Any, inputs: Sequence[Storage]) -> bool:
        if self._wanted_on_host is not None:
            return self._wanted_on_host
        return all(each.is_on_host for each in inputs)

    def _event(self, storage: Storage, *, is_birth: bool) -> None:
        super()._event(storage, is_birth=is_birth)
        if self.step_starts:
            self._events_of_all.append(TraceEvent(self.position, storage.number, is_birth))


def is_gpu(device: Any) -> bool:
    """Whether a device, given as name, number or record, has its own memory."""
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    kind = str(device).partition(":")[0]
    return kind not in ("cpu", "meta")
