"""The tracer of a script that memprof runs as it is: it distinguishes the host from a GPU that does not exist.

    with mode, ScriptTracer(places, mode) as tracer:
        ...the script...

Tensors have the place that the script gives them: `device="cuda"` and `.to("cuda")` put them on the GPU, and what is
computed from a tensor on the GPU is there too. A script that never names a GPU is taken to have all of its tensors on
one. Tensors on the host that are made of data (from NumPy, of numbers, of indices) are real, since a script may read
their values; all others are fake.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    """See above.

    Attributes:
        names_gpu: whether the script has named a GPU.
        is_inside: whether PyTorch itself is at work on an operation, for which all tensors are on the CPU.
    """

    _unseen_on_host = True

    def __init__(self, places: Places, mode: FakeTensorMode) -> None:
        super().__init__(places)
        self.names_gpu = False
        self.is_inside = False
        self._mode = mode
        self._fakes = WeakTensorKeyDictionary()  # of real tensors
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
            # Autograd and autocast name the device of a tensor, which to PyTorch is on the CPU.
            if wanted is None and (is_gpu(device) or not tensors):
                wanted = not is_gpu(device)
            self.names_gpu |= is_gpu(device)
            kwargs["device"] = HOST
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"], wanted = False, True
        before = self.is_inside
        self.is_inside = True
        try:
            if wanted is not False and not any(isinstance(each, FakeTensor) for each in tensors):
                real = self._real(func, args, kwargs, has_inputs=bool(tensors))
                if real is not None:
                    return real
            args, kwargs = tree_map(self.fake, (args, kwargs))
            self._wanted_on_host = wanted
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self.is_inside = before

    def _real(self, func: Any, args: Any, kwargs: Any, *, has_inputs: bool) -> Any:
        """The result of an operation on data of the host, computed; None: it is to be traced instead."""
        if not has_inputs:
            found = func(*args, **kwargs)
            if not isinstance(found, torch.Tensor) or found.is_floating_point() or found.is_complex():
                return None
            if found.untyped_storage().nbytes() > _LARGEST_REAL_BYTES:
                return None
        with _disable_current_modes():
            return func(*args, **kwargs)

    def fake(self, value: Any) -> Any:
        """A real tensor as a fake one, which lives as long; anything else as it is."""
        if not isinstance(value, torch.Tensor):
            return value
        if isinstance(value, FakeTensor):
            if self._record_of(value) is None:  # of a data loader
                self.note_batch(value)
            return value
        if value not in self._fakes:
            before, self.is_inside = self.is_inside, True
            try:
                self._fakes[value] = self._mode.from_tensor(value)
            finally:
                self.is_inside = before
            self.note_batch(self._fakes[value])
        return self._fakes[value]

    def fake_buffers(self, network: torch.nn.Module) -> None:
        """Have a network keep fake tensors where it has real ones."""
        for module in network.modules():
            module._buffers.update({name: self.fake(buffer) for name, buffer in module._buffers.items()})

    def storage_of(self, tensor: torch.Tensor) -> Storage:
        """The record of a tensor's storage. A real one, such as a counter of an optimizer, stays on the host."""
        storage = super().storage_of(tensor)
        if not isinstance(tensor, FakeTensor):
            self._kept_on_host.add(storage.number)
        return storage

    def is_on_gpu(self, tensor: torch.Tensor) -> bool:
        """Whether the script has this tensor on the GPU."""
        found = self._record_of(tensor) if isinstance(tensor, FakeTensor) else None
        return found is not None and not found.is_on_host

    def placed(self, tensor: torch.Tensor, *, on_host: bool) -> torch.Tensor:
        """A tensor on the host or on the GPU: itself if it is there, else a copy."""
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

    @contextmanager
    def moving(self) -> Iterator[None]:
        """What goes to the GPU leaves no copy behind, as parameters of a module that is moved."""
        before, self._is_moving = self._is_moving, True
        try:
            yield
        finally:
            self._is_moving = before

    def move_to_device(self, tensor: torch.Tensor) -> None:
        """A tensor leaves the host."""
        storage = self.storage_of(tensor)
        if storage.is_on_host:
            storage.is_on_host = False
            if storage.role is Role.BATCH:
                storage.role, storage.path = None, ""
            if self.step_starts:
                self.events.append(TraceEvent(self.position, storage.number, is_birth=True))

    def keep_on_host(self, tensor: torch.Tensor) -> None:
        """A tensor of a data set, of which only batches are copied to a GPU."""
        if isinstance(tensor, FakeTensor):
            self._kept_on_host.add(self.storage_of(tensor).number)

    def finish(self) -> None:
        """The script has ended. If it named no GPU, what it had on the host counts as on the GPU."""
        if not self.names_gpu:
            self.events = [each for each in self._events_of_all if each.value not in self._kept_on_host]
            for storage in self.storages:
                storage.is_on_host = storage.number in self._kept_on_host

    def _number(self, func: Any, tensor: torch.Tensor, inputs: Sequence[Storage]) -> bool | int | float:
        """A flag that is not set, or a loss or count that one can divide by."""
        try:
            return func(tensor)
        except DataDependentOutputException:
            return number_like(tensor, 0 if tensor.dtype is torch.bool else 1)

    def note_batch(self, tensor: torch.Tensor) -> None:
        """A tensor is data, unless a network turns out to own it."""
        storage = self.storage_of(tensor)
        if storage.role is None and tensor.dim():
            storage.role, storage.path = Role.BATCH, "batch"

    def _makes_on_host(self, func: Any, inputs: Sequence[Storage]) -> bool:
        del func
        if self._wanted_on_host is not None:
            return self._wanted_on_host
        return all(each.is_on_host for each in inputs)

    def _event(self, storage: Storage, *, is_birth: bool) -> None:
        super()._event(storage, is_birth=is_birth)
        if self.step_starts:
            self._events_of_all.append(TraceEvent(self.position, storage.number, is_birth))


def is_gpu(device: Any) -> bool:
    """Whether a device, by its name, number or record, is one that has memory of its own."""
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    kind = str(device).partition(":")[0]
    return kind not in ("cpu", "meta")
