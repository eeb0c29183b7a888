"""Between JAX's pytrees of parameters and the words that states are declared in."""

from __future__ import annotations

from typing import Any

import jax

from memprof.workloads.optimizer_state import ParamLeaf

KeyPath = tuple[Any, ...]


def param_leaf(path: KeyPath, leaf: Any) -> ParamLeaf:
    """Returns a leaf of a parameter tree in our words.

    Args:
        path: its keys, as `jax.tree_util.tree_map_with_path` passes them.
        leaf: an array or a `jax.ShapeDtypeStruct`.
    """
    name = jax.tree_util.keystr(path[-1:], simple=True)
    return ParamLeaf(name=name, shape=tuple(leaf.shape), dtype=str(leaf.dtype))


def param_leaves(params: Any) -> list[ParamLeaf]:
    """Returns all leaves of a parameter tree."""
    return [param_leaf(path, leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)]
