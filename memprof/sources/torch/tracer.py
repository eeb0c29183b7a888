"""A tracer that records each storage of a step: its birth, its growth, its uses and its death.

    with FakeTensorMode(), StorageTracer(places) as tracer:
        tracer.begin_step()
        loss_fn(model, batch).backward()

A storage is live from the operation that makes it until the last tensor on it is deleted. References in Python and
autograd decide this, exactly as on a device. Views and in-place operations share the storage of their input.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.trace import TraceEvent
from memprof.errors import MemprofError
from memprof.sources.torch.categories import Depends
from memprof.sources.torch.places import Place, Places

_ACCUMULATE = "torch::autograd::AccumulateGrad"
_aten = torch.ops.aten
# Values made from Python numbers stay in host memory until they are moved.
_LITERALS = (_aten.lift_fresh.default, _aten.lift_fresh_copy.default)
_NO_OPERATIONS = ("prim", "profiler")
# CUDA's kernels return a mean and a deviation in float32; those of the CPU have the type of the input.
_WITH_STATISTICS = (_aten.native_layer_norm.default, _aten.native_batch_norm.default)
# The operations that call cuBLAS.
_OF_CUBLAS = frozenset(
    getattr(_aten, name).default
    for name in ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot", "_addmm_activation")
)
_NEVER_DELETED: weakref.ref[Any] = weakref.ref(torch)


@dataclass(slots=True, eq=False)
class Storage:
    """The trace's record of one storage. See `TracedValue` and `Facts`."""

    number: int
    size_bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    op: str
    position: int
    phase: Phase
    place: Place
    depends: Depends
    reference: weakref.ref[Any]
    is_on_host: bool = False
    is_used_in_backward: bool = False
    is_gradient: bool = False
    is_set_from_params: bool = False  # written in place, with parameters or values made from them alone
    role: Role | None = None
    path: str = ""
    communicates: Category | None = None
    is_workspace: bool = False


@dataclass(slots=True)
class Work:
    """The operation counts of one step.

    Attributes:
        flops, recomputed_flops, forward_flops, calls, recomputed, moved_to_host_bytes: as in `Trace`.
    """

    flops: int
    recomputed_flops: int
    forward_flops: Counter[str]
    calls: Counter[str]
    recomputed: Counter[str]
    moved_to_host_bytes: int = 0


class StorageTracer(TorchDispatchMode):
    """A dispatch mode that records storages. Enter it inside `FakeTensorMode`.

    Attributes:
        storages: all storages, in the order of their births.
        events: births and deaths since the beginning of the first step.
        position: the number of the current operation, from the beginning of the first step.
        step_starts: the positions at which steps begin.
        phases, modules: the phase and module of each operation since the beginning of the first step.
        work: the operation counts of the current step.
        workspace_bytes: the size of a workspace of cuBLAS. PyTorch keeps one for each thread that calls it.
    """

    _unseen_on_host = False  # whether tensors made outside the trace are on the host

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.places = places
        self.storages: list[Storage] = []
        self.events: list[TraceEvent] = []
        self.position = 0
        self.step_starts: list[int] = []
        self.phases: list[Phase] = []
        self.modules: list[str] = []
        self.work = Work(0, 0, Counter(), Counter(), Counter())
        self.workspace_bytes = 0
        self._live: dict[int, Storage] = {}
        self._update_of: int | None = None  # the backward pass that an update runs in; -1: outside a backward pass
        self._counters_on_host = False
        self._is_after_backward = False
        self._placed_on_host: bool | None = None
        self._communicating: tuple[str, Category] | None = None

    def begin(self, order: Sequence[Storage]) -> None:
        """Begin the first step. Storages that exist now were not made by a step.

        Args:
            order: storages in the order in which they are moved to the device; the others follow.
        """
        self.begin_step()
        for storage in dict.fromkeys([*order, *self._live.values()]):
            storage.phase, storage.position = Phase.ARGUMENT, 0
            self._event(storage, is_birth=True)

    def begin_step(self) -> None:
        """Begin the next step."""
        self.step_starts.append(len(self.phases))
        self.work = Work(0, 0, Counter(), Counter(), Counter())
        self._is_after_backward = False

    def begin_update(self, *, counters_on_host: bool) -> None:
        """Record that an optimizer begins its update.

        Args:
            counters_on_host: the scalars that it makes are in host memory.
        """
        self._update_of = torch._C._current_graph_task_id()
        self._counters_on_host = counters_on_host

    def end_update(self) -> None:
        """Record that an optimizer has made its update."""
        self._update_of = None

    def storage_of(self, tensor: torch.Tensor) -> Storage:
        """Return the record of a tensor's storage. It is made if the trace has not seen the storage."""
        known = self._record_of(tensor)
        if known is not None:
            return known
        return self._born(tensor, "", Phase.ARGUMENT, Place(), Depends.DATA, is_on_host=self._unseen_on_host)

    def move_to_device(self, tensor: torch.Tensor) -> None:
        """Record that a tensor made from Python numbers is moved from the host to the device."""
        storage = self.storage_of(tensor)
        if storage.is_on_host:
            storage.is_on_host = False
            self._event(storage, is_birth=True)

    def placing(self, *, on_host: bool) -> AbstractContextManager[None]:
        """Put the results of operations on the host or on the device, regardless of their inputs."""
        return self._having("_placed_on_host", on_host)

    def communicating(self, name: str, category: Category = Category.COLLECTIVES) -> AbstractContextManager[None]:
        """Record what is made now as buffers of the communication between devices."""
        return self._having("_communicating", (name, category))

    @contextmanager
    def _having(self, attribute: str, value: Any) -> Iterator[None]:
        """Change an attribute within a `with` block."""
        before = getattr(self, attribute)
        setattr(self, attribute, value)
        try:
            yield
        finally:
            setattr(self, attribute, before)

    def resized(self, stored: torch.UntypedStorage) -> None:
        """Record that a storage has another size, without an operation: the old value dies, and a new one is born."""
        known = self._live.get(stored._cdata)
        if known is not None and known.size_bytes != stored.nbytes():
            self._event(known, is_birth=False)
            number, size_bytes = len(self.storages), stored.nbytes()
            self._live[stored._cdata] = replace(
                known, number=number, size_bytes=size_bytes, position=self.position, phase=self._phase()
            )
            self.storages.append(self._live[stored._cdata])
            self._event(self._live[stored._cdata], is_birth=True)

    @property
    def live(self) -> Sequence[Storage]:
        """The live storages."""
        return tuple(self._live.values())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(each is DTensor for each in types):
            return NotImplemented  # the operations on its part of each tensor are recorded
        kwargs = kwargs or {}
        if func.namespace in _NO_OPERATIONS:
            return func(*args, **kwargs)
        inputs = [found for each in _tensors((args, kwargs)) if (found := self._record_of(each))]
        if func is _aten._local_scalar_dense.default:
            self._use(inputs, self._phase())
            return self._number(func, args[0], inputs)
        phase = self._phase()
        self.position = len(self.phases)
        result = func(*args, **kwargs)
        if func in _WITH_STATISTICS:
            result = result[0], *(each.float() for each in result[1:])
        place = self._place(phase, inputs)
        if self.step_starts:
            self.phases.append(phase)
            self.modules.append(place.module)
        self._use(inputs, phase)
        if func._schema.is_mutable:
            self._note_written(func, args, kwargs, inputs)
        self._count(func, args, kwargs, result, phase, place)
        depends = self._depends(func, inputs)
        is_on_host = self._makes_on_host(func, inputs)
        is_counter = phase is Phase.UPDATE and not inputs and self._counters_on_host
        for tensor in _tensors(result):
            known = self._record_of(tensor)
            if known is None:
                on_host = is_on_host or (is_counter and tensor.dim() == 0)
                self._born(tensor, _name(func), phase, place, depends, is_on_host=on_host)
            else:
                known.depends |= depends
                self._grown(known, tensor)
        if func in _OF_CUBLAS and not is_on_host:
            self._use_workspace(phase, place)
        return result

    def _use_workspace(self, phase: Phase, place: Place) -> None:
        """Allocate the workspace of this thread with its first call of cuBLAS. Autograd has a thread of its own."""
        thread = -2 if torch._C._current_graph_task_id() != -1 else -1  # no address of a tensor is negative
        if not self.workspace_bytes or thread in self._live:
            return
        storage = Storage(
            number=len(self.storages),
            size_bytes=self.workspace_bytes,
            shape=(self.workspace_bytes,),
            dtype=torch.uint8,
            op="cublasSetWorkspace",
            position=self.position,
            phase=phase,
            place=place,
            depends=Depends.NOTHING,
            reference=_NEVER_DELETED,
            is_workspace=True,
        )
        self.storages.append(storage)
        self._live[thread] = storage
        self._event(storage, is_birth=True)

    def _number(self, func: Any, tensor: torch.Tensor, inputs: Sequence[Storage]) -> bool | int | float:
        """Return the value of a tensor with one element, or a placeholder if only a device could compute it.

        The placeholder is 1 on the host, for a counter that has counted something, and 0 on the device, for a loss or
        an unset flag.
        """
        try:
            return func(tensor)
        except DataDependentOutputException:
            return number_like(tensor, 1 if all(each.is_on_host for each in inputs) else 0)

    def _depends(self, func: Any, inputs: Sequence[Storage]) -> Depends:
        depends = Depends.RANDOM if torch.Tag.nondeterministic_seeded in func.tags else Depends.NOTHING
        for each in inputs:
            if each.role is Role.PARAMS:
                depends |= Depends.PARAMS
            elif each.role is not None:
                depends |= Depends.DATA
            elif not each.is_on_host or self._unseen_on_host:
                depends |= each.depends
        return depends

    def _makes_on_host(self, func: Any, inputs: Sequence[Storage]) -> bool:
        """Whether the results of an operation lie in host memory."""
        if self._placed_on_host is not None:
            return self._placed_on_host
        return func in _LITERALS or (bool(inputs) and all(each.is_on_host for each in inputs))

    def _phase(self) -> Phase:
        task = torch._C._current_graph_task_id()
        records_gradients = torch.is_grad_enabled()
        if self._update_of == task and not records_gradients:
            return Phase.UPDATE
        if task != -1:
            self._is_after_backward = True
            return Phase.RECOMPUTE if records_gradients else Phase.BACKWARD
        if records_gradients:
            self._is_after_backward = False
            return Phase.FORWARD
        if self.places.is_in_function():
            return Phase.FORWARD
        return Phase.UPDATE if self._is_after_backward else Phase.UNDIFFERENTIATED

    def _place(self, phase: Phase, inputs: Sequence[Storage]) -> Place:
        if phase is Phase.BACKWARD:
            node = torch._C._current_autograd_node()
            place = None if node is None else self.places.of_node(node)
            if place is not None:
                return place
        elif phase in (Phase.FORWARD, Phase.RECOMPUTE):
            return self.places.of_forward()
        modules = {each.place.module for each in inputs if not each.is_on_host}
        module = modules.pop() if len(modules) == 1 else self.places.module
        return self.places.of_lines().in_module(module)

    def _use(self, inputs: Sequence[Storage], phase: Phase) -> None:
        if phase in (Phase.BACKWARD, Phase.RECOMPUTE):
            node = torch._C._current_autograd_node()
            accumulates = phase is Phase.BACKWARD and node is not None and node.name() == _ACCUMULATE
            for each in inputs:
                each.is_used_in_backward = True
                each.is_gradient |= accumulates

    def _note_written(self, func: Any, args: Any, kwargs: Any, inputs: Sequence[Storage]) -> None:
        """Record which values an in-place operation makes from parameters."""
        written = [each for value in _written(func, args, kwargs) if (each := self._record_of(value))]
        if any(_is_of_params(each) for each in inputs if each not in written):
            for each in written:
                each.is_set_from_params = True

    def _count(self, func: Any, args: Any, kwargs: Any, result: Any, phase: Phase, place: Place) -> None:
        self.work.calls[_name(func)] += 1
        if phase is Phase.RECOMPUTE:
            self.work.recomputed[place.module] += 1
        formula = flop_registry.get(func._overloadpacket)
        if formula is None:
            return
        flops = int(formula(*args, **kwargs, out_val=result))
        self.work.flops += flops
        if phase is Phase.RECOMPUTE:
            self.work.recomputed_flops += flops
        if phase is Phase.FORWARD:
            self.work.forward_flops[place.module] += flops

    def _record_of(self, tensor: torch.Tensor) -> Storage | None:
        return self._live.get(tensor.untyped_storage()._cdata)

    def _born(
        self, tensor: torch.Tensor, op: str, phase: Phase, place: Place, depends: Depends, *, is_on_host: bool = False
    ) -> Storage:
        stored = tensor.untyped_storage()
        key = stored._cdata
        storage = Storage(
            number=len(self.storages),
            size_bytes=stored.nbytes(),
            shape=tuple(tensor.shape),
            dtype=tensor.dtype,
            op=op,
            position=self.position,
            phase=phase,
            place=place,
            depends=depends,
            reference=weakref.ref(stored, lambda _: self._died(key)),
            is_on_host=is_on_host,
        )
        self.work.moved_to_host_bytes += storage.size_bytes if self._placed_on_host else 0
        if self._communicating is not None:
            storage.op, storage.communicates = self._communicating
        self.storages.append(storage)
        self._live[key] = storage
        self._event(storage, is_birth=True)
        return storage

    def _grown(self, storage: Storage, tensor: torch.Tensor) -> None:
        """Record a resized storage as a new value: the old one dies, and a new one is born."""
        stored = tensor.untyped_storage()
        if stored.nbytes() != storage.size_bytes:
            self._died(stored._cdata)
            grown = self._born(tensor, storage.op, storage.phase, storage.place, storage.depends)
            grown.role, grown.path, grown.is_gradient = storage.role, storage.path, storage.is_gradient

    def _died(self, key: int) -> None:
        storage = self._live.pop(key, None)
        if storage is not None:
            self._event(storage, is_birth=False)

    def _event(self, storage: Storage, *, is_birth: bool) -> None:
        if self.step_starts and not storage.is_on_host:
            self.events.append(TraceEvent(self.position, storage.number, is_birth))


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided:
                kind = str(leaf.layout).removeprefix("torch.")
                raise MemprofError(f"the step makes a tensor of layout {kind}, and a trace only follows dense tensors")
            yield leaf


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that an operation writes to. Those on lists of tensors (foreach) do not return them."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(args[number] if number < len(args) else kwargs.get(argument.name))


def _is_of_params(storage: Storage) -> bool:
    """Whether a value is a parameter, or made from parameters alone."""
    return storage.role is Role.PARAMS or (storage.role is None and storage.depends is Depends.PARAMS)


def _name(func: Any) -> str:
    """Return the name of an operation without its overload: `aten.mm` for `aten.mm.default`."""
    return f"{func.namespace}.{func._opname}"


def number_like(tensor: torch.Tensor, number: int) -> bool | int | float:
    """Return a number as a value of a tensor's type."""
    return bool(number) if tensor.dtype is torch.bool else float(number) if tensor.is_floating_point() else number
