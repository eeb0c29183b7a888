"""The tensors that belong to the model, the optimizer, the scaler and the batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import keystr, tree_flatten_with_path

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Role
from memprof.sources.torch.places import without_compiled
from memprof.sources.torch.step_spec import TorchStepSpec
from memprof.sources.torch.tracer import Storage, StorageTracer


@dataclass(slots=True, kw_only=True)
class Parts:
    """The parts of a training step.

    Attributes:
        networks: `torch.nn.Module`s, by the prefix of their paths: empty, or `generator.`.
        optimizers, scalers: `torch.optim.Optimizer`s and `torch.amp.GradScaler`s.
        batch: tensors in any pytree of PyTorch.
    """

    networks: Mapping[str, Any] = field(default_factory=dict)
    optimizers: Sequence[Any] = ()
    scalers: Sequence[Any] = ()
    batch: Any = None


def parts_of(spec: TorchStepSpec) -> Parts:
    """Return the parts of a user's step."""
    networks = _several(spec.model)
    return Parts(
        networks={f"{number}." if len(networks) > 1 else "": each for number, each in enumerate(networks)},
        optimizers=_several(spec.optimizer),
        scalers=() if spec.scaler is None else (spec.scaler,),
        batch=spec.batch,
    )


class Owners:
    """Finder of the tensors that belong to the parts of a step. It assigns roles to their storages."""

    def __init__(self, parts: Parts, tracer: StorageTracer) -> None:
        self._tracer = tracer
        self._paths: dict[torch.Tensor, str] = {}
        self.leaves: dict[str, ArgumentLeaf] = {}
        self.parts = parts
        self.name_modules()

    def name_modules(self) -> None:
        """Tell the trace the paths of the networks' modules."""
        for prefix, network in self.parts.networks.items():
            self._tracer.places.name_modules(network, prefix)

    def assign(self) -> list[Storage]:
        """Give each storage of a part its role. Return these in the order in which a training loop moves them."""
        return [self._own(tensor, path, role) for tensor, path, role in self._kept()]

    def find_averages(self) -> None:
        """Give the role of other state to parameters that others are written into and no optimizer updates.

        These are averages of a model's weights, and target and teacher networks.
        """
        trained = {
            self._tracer.storage_of(local_part(each)).number
            for optimizer in self.parts.optimizers
            for group in optimizer.param_groups
            for each in group["params"]
        }
        for storage in self._tracer.live:
            if storage.role is Role.PARAMS and storage.is_set_from_params and storage.number not in trained:
                storage.role = Role.OTHER_STATE
                if storage.path in self.leaves:
                    self.leaves[storage.path] = replace(self.leaves[storage.path], role=Role.OTHER_STATE)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Follow the optimizer's updates, and the state that it makes in the first one."""

        def before(optimizer: Any, *_: Any) -> None:
            for tensor, path in self._paths.items():
                if tensor.grad is not None:
                    gradient = self._tracer.storage_of(local_part(tensor.grad))
                    gradient.is_gradient, gradient.path = True, f"{path}.grad"
            # Counters are on the host, unless the update is capturable in a CUDA graph or is one fused kernel.
            on_device = any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
            self._tracer.begin_update(counters_on_host=not on_device)

        def after(*_: Any) -> None:
            self._tracer.end_update()
            self.assign()

        hooks = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _kept(self) -> Iterator[tuple[torch.Tensor, str, Role]]:
        for prefix, network in self.parts.networks.items():
            for name, tensor in network.named_parameters():
                self._paths[tensor] = without_compiled(f"{prefix}{name}")
                yield tensor, self._paths[tensor], Role.PARAMS
            for name, tensor in network.named_buffers():
                yield tensor, without_compiled(f"{prefix}{name}"), Role.OTHER_STATE
        for optimizer in self.parts.optimizers:
            for group in optimizer.param_groups:
                for number, tensor in enumerate(group["params"]):
                    if tensor not in self._paths:
                        self._paths[tensor] = f"params.{number}"
                        yield tensor, self._paths[tensor], Role.PARAMS
            for parameter, state in optimizer.state.items():
                owner = self._paths.get(parameter, "") if isinstance(parameter, torch.Tensor) else ""
                for path, tensor in _named_tensors(state):
                    yield tensor, f"{owner}{path}", Role.OPTIMIZER_STATE
        for scaler in self.parts.scalers:
            for path, tensor in _named_tensors([getattr(scaler, name, None) for name in _SCALES]):
                yield tensor, f"scaler{path}", Role.OTHER_STATE
        for path, tensor in _named_tensors(self.parts.batch):
            if not isinstance(tensor, torch.nn.Parameter):
                yield tensor, f"batch{path}", Role.BATCH

    def _own(self, tensor: torch.Tensor, path: str, role: Role) -> Storage:
        tensor = local_part(tensor)
        storage = self._tracer.storage_of(tensor)
        if storage.role is not None and (storage.role is not Role.BATCH or role is Role.BATCH):
            return storage  # only a storage assumed to be data may get another owner
        storage.role, storage.path = role, path
        if role is Role.BATCH:
            self._tracer.move_to_device(tensor)
        owner = path.partition("[")[0] if role is Role.OPTIMIZER_STATE else path.rpartition(".")[0]
        if role is Role.OPTIMIZER_STATE:
            owner = owner.rpartition(".")[0]
        storage.place = storage.place.in_module("" if role is Role.BATCH else owner.replace(".", "/"))
        if not storage.is_on_host:
            self.leaves[path] = ArgumentLeaf(
                path=path,
                role=role,
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                size_bytes=tensor.numel() * tensor.element_size(),
                donated=role is not Role.BATCH,
                parameter_number=len(self.leaves),
            )
        return storage


_SCALES = ("_scale", "_growth_tracker")


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this device's part of a tensor that is divided over several."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _several(one_or_more: Any) -> Sequence[Any]:
    return tuple(one_or_more) if isinstance(one_or_more, list | tuple) else (one_or_more,)


def _named_tensors(tree: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for path, leaf in tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, torch.Tensor):
            yield keystr(path), leaf
