"""Shardings of a training step's arrays on a mesh, decided array by array by the fields that techniques set.

A `Layout` gives every leaf of the state and of the batch its sharding. Inside the step and the models, `divided`
constrains activations; between these points XLA's partitioner decides (GSPMD, Xu et al. 2021, arXiv:2105.04663).

A dimension that the number of devices does not divide stays whole on each device, and the report shows it. Dimensions
that must divide (the batch, the heads) are checked before (see `techniques/sharding.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from memprof.workloads.mesh_axes import DP, EP, FSDP, PP, SP, TP, batch_axes
from memprof.workloads.scopes import EXPERTS, LAYERS
from memprof.workloads.train_config import TrainConfig

# The dimensions of an activation.
BATCH: Final = "batch"
LENGTH: Final = "length"
TOKENS: Final = "tokens"  # batch and length in one dimension
WIDTH: Final = "width"  # heads, hidden units, the vocabulary
EXPERT: Final = "expert"
GROUP: Final = "group"  # examples for which each device has its experts' part
WHOLE: Final = None

_Spec = list[tuple[str, ...]]  # the axes that divide each dimension
_Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The shardings of a step's arguments.

    Attributes:
        config: the decisions of the techniques.
        tensor_axes: the axis of a parameter that `tp` divides, counted from the end, by the end of the parameter's
            path: `{"up/kernel": -1}`.
    """

    mesh: Mesh
    config: TrainConfig
    tensor_axes: Mapping[str, int]

    def of_state(self, state: Any) -> Any:
        """Return the shardings of a training state, in its tree."""
        shapes = {_keys(path): leaf.shape for path, leaf in _leaves(state.params)}

        def of_leaf(path: Any, leaf: Any) -> NamedSharding:
            root, *keys = _keys(path)
            if root == "params":
                return self._sharding(self._of_param(tuple(keys), leaf.shape))
            param = next((end for end in _ends(keys) if shapes.get(end) == leaf.shape), None)
            spec = self._of_param(param, leaf.shape) if param else self._of_other(root, leaf.shape)
            if root == "opt_state" and self.config.data_parallel in ("zero1", "zero2"):
                self._divide(spec, leaf.shape, DP, first=_first(param or (), leaf.shape))
            return self._sharding(spec)

        return jax.tree_util.tree_map_with_path(of_leaf, state)

    def of_params(self, params: Any) -> Any:
        """Return the shardings of parameters, in their tree."""
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: self._sharding(self._of_param(_keys(path), leaf.shape)), params
        )

    def of_gradients(self, params: Any) -> Any:
        """Return the shardings of the gradients: those of the parameters or, with `zero2`, of the optimizer state."""

        def of_leaf(path: Any, leaf: Any) -> NamedSharding:
            spec = self._of_param(_keys(path), leaf.shape)
            if self.config.data_parallel == "zero2":
                self._divide(spec, leaf.shape, DP, first=_first(_keys(path), leaf.shape))
            return self._sharding(spec)

        return jax.tree_util.tree_map_with_path(of_leaf, params)

    def of_batch(self, batch: Any) -> Any:
        """Return the shardings of a batch: the first axis is the example, the next the token if there is one."""
        by_example, by_token = batch_axes(self.config) or None, SP if self.config.sequence_parallel else None

        def of_leaf(leaf: Any) -> NamedSharding:
            return NamedSharding(self.mesh, PartitionSpec(*(by_example, by_token)[: len(leaf.shape)]))

        return jax.tree.map(of_leaf, batch)

    def _of_param(self, path: _Path, shape: tuple[int, ...]) -> _Spec:
        spec: _Spec = [()] * len(shape)
        if self.config.pipelined and LAYERS in path:
            spec[0] = (PP,)
        if self.config.expert_parallel and EXPERTS in path:
            spec[_first(path, shape)] = (EP,)
        if self.config.tensor_parallel:
            axis = next((axis for end, axis in self.tensor_axes.items() if "/".join(path).endswith(end)), None)
            if axis is not None and shape[axis] % self.mesh.shape[TP] == 0:
                spec[axis] = (TP,)
        if self.config.fully_sharded:
            self._divide(spec, shape, FSDP, first=_first(path, shape))
        return spec

    def _of_other(self, root: str, shape: tuple[int, ...]) -> _Spec:
        """Return the spec of leaves that are not shaped like a parameter: row sums, 8-bit codes, counters."""
        spec: _Spec = [()] * len(shape)
        if root == "opt_state" and self.config.fully_sharded:
            self._divide(spec, shape, FSDP, first=0)
        return spec

    def _divide(self, spec: _Spec, shape: tuple[int, ...], axis: str, *, first: int) -> None:
        """Divide one more dimension: the longest that is still whole, else one that is already divided, if possible."""
        sizes = [prod(self.mesh.shape[each] for each in (*spec[n], axis)) for n in range(len(shape))]
        can_be = [n for n in range(first, len(shape)) if shape[n] > 1 and shape[n] % sizes[n] == 0]
        if can_be:
            chosen = max(can_be, key=lambda n: (not spec[n], shape[n]))
            spec[chosen] = (*spec[chosen], axis)

    def _sharding(self, spec: _Spec) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*(axes or None for axes in spec)))


def divided(array: jax.Array, config: TrainConfig, *dims: str | None) -> jax.Array:
    """Keep an activation divided over the step's mesh; return it unchanged on one device or without a technique.

    Args:
        dims: the kind of each dimension, from the names above; further dimensions stay whole.
    """
    length = (SP,) if config.sequence_parallel else ()
    axes = {
        BATCH: batch_axes(config),
        LENGTH: length,
        TOKENS: (*batch_axes(config), *length),
        WIDTH: (TP,) if config.tensor_parallel else (),
        EXPERT: (EP,) if config.expert_parallel else (),
        GROUP: tuple(axis for axis in batch_axes(config) if axis != EP),
        WHOLE: (),
    }
    mesh = jax.sharding.get_abstract_mesh()
    # Inside `shard_map` an array is already divided over its manual axes.
    axes = {dim: tuple(axis for axis in over if axis not in mesh.manual_axes) for dim, over in axes.items()}
    if not is_shared() or not any(axes.values()):
        return array
    sizes = [prod(mesh.shape[axis] for axis in axes[dim]) for dim in dims]
    divides = [extent % size == 0 for extent, size in zip(array.shape, sizes, strict=False)]
    parts = [axes[dim] or None if fits else None for dim, fits in zip(dims, divides, strict=True)]
    return jax.lax.with_sharding_constraint(array, PartitionSpec(*parts))


def is_shared() -> bool:
    """Whether several devices share the step that is being traced."""
    return bool(jax.sharding.get_abstract_mesh().size > 1)


def with_shardings(shapes: Any, shardings: Any) -> Any:
    """Return the same shapes and dtypes with shardings on a mesh."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings
    )


def _leaves(tree: Any) -> Any:
    return jax.tree_util.tree_leaves_with_path(tree)


def _keys(path: Any) -> _Path:
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def _ends(keys: list[str]) -> list[_Path]:
    """Return the ends of a path, longest first: a moment's path ends with that of its parameter."""
    return [tuple(keys[start:]) for start in range(len(keys))]


def _first(path: _Path, shape: tuple[int, ...]) -> int:
    """Return the first axis that can be divided: a loop goes over the first axis of stacked layers."""
    return 1 if LAYERS in path and len(shape) > 1 else 0
