"""Roles by the container types in the argument tree.

The frameworks are never imported: if a framework was not imported by the user, the arguments contain no objects of its
classes. A class is identified by the package that defines it, so a user's own class of the same name is not mistaken
for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax

from memprof.analysis.records.categories import Role
from memprof.sources.jax.own_attributes import has_own, is_defined_in, is_equinox_module
from memprof.sources.jax.roles.leaf import Claim, longest_prefix

_Find = Callable[[Any], Iterator[tuple[str, Claim]]]
OPTIMIZER_STATE = Claim(role=Role.OPTIMIZER_STATE, reason="state of an optimizer")
SIMULATION = Claim(role=Role.OTHER_STATE, reason="state of a simulation")
# Packages, besides optax, whose state records belong to an optimizer, or to a simulation.
_OPTIMIZERS = ("jaxopt", "optimistix", "kfac_jax")
_SIMULATORS = ("jax_md",)
# Weak claims: the use in the program overrules them.
MODEL_STATE = Claim(role=Role.OTHER_STATE, reason="beside the parameters in a training state")
INEXACT = Claim(role=Role.PARAMS, reason="an inexact array of an Equinox module")


def claims_by_type(arguments: Mapping[str, Any]) -> dict[str, Claim]:
    """Return claims by path. A claim holds for all leaves under its path; the longest path decides.

    Args:
        arguments: the step's arguments by name.
    """
    claims: dict[str, Claim] = {}
    for find in (_training_states, _equinox_modules, _nnx_variables, _simulations):  # later ones are more certain
        claims.update(_found(find, arguments))
    # An optimizer's state mirrors the parameters, including their modules, so types inside it mean nothing.
    states = dict(_found(_optimizer_states, arguments))
    inside = {path for path in claims if longest_prefix(path, states) is not None}
    return {path: claim for path, claim in claims.items() if path not in inside} | states


def nnx_variables(arguments: Mapping[str, Any]) -> frozenset[str]:
    """Return the paths of NNX variables. Their arrays are their `.value`."""
    return frozenset(path for path, _ in _found(_nnx_variables, arguments))


def _found(find: _Find, arguments: Mapping[str, Any]) -> Iterator[tuple[str, Claim]]:
    for name, argument in arguments.items():
        for path, claim in find(argument):
            yield name + path, claim


def _nodes(tree: Any, is_wanted: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Yield the outermost wanted nodes of a tree, with their paths."""
    for keys, node in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_wanted):
        if is_wanted(node):
            yield jax.tree_util.keystr(keys), node


def _is_optax_state(node: Any) -> bool:
    # `LookaheadParams` holds two copies of the parameters.
    is_record = isinstance(node, tuple) and hasattr(type(node), "_fields") and type(node).__name__ != "LookaheadParams"
    return is_record and is_defined_in("optax", node)


def _is_state_of(packages: Iterable[str], node: Any) -> bool:
    """Whether a node's type is defined in one of these packages and named `...State`."""
    return type(node).__name__.endswith("State") and any(is_defined_in(package, node) for package in packages)


def _is_optimizer_state(node: Any) -> bool:
    """Whether a node is an optimizer's state, or the states of a chain of transformations, also the user's own."""
    if _is_optax_state(node) or _is_state_of(_OPTIMIZERS, node):
        return True
    return type(node) is tuple and any(map(_is_optimizer_state, node)) and all(isinstance(part, tuple) for part in node)


def _optimizer_states(tree: Any) -> Iterator[tuple[str, Claim]]:
    for path, _ in _nodes(tree, _is_optimizer_state):
        yield path, OPTIMIZER_STATE


def _simulations(tree: Any) -> Iterator[tuple[str, Claim]]:
    """Yield the states of simulations.

    A force is a gradient too: molecular dynamics has the data flow of momentum without friction.
    """
    for path, _ in _nodes(tree, lambda node: _is_state_of(_SIMULATORS, node)):
        yield path, SIMULATION


def _fields(node: Any) -> Mapping[str, Any]:
    """Return a container's parts by key: the items of a mapping, or the fields of a record."""
    if isinstance(node, Mapping):
        return node
    names = getattr(type(node), "_fields", getattr(type(node), "__dataclass_fields__", ()))
    return {name: getattr(node, name) for name in names if has_own(node, name)}


def _is_training_state(node: Any) -> bool:
    """Whether a node has `params` and an optimizer's state, as Flax's `TrainState`, or holds Flax collections."""
    parts = _fields(node)
    if "params" not in parts:
        return False
    others = [part for name, part in parts.items() if name != "params"]
    return any(any(True for _ in _nodes(part, _is_optimizer_state)) for part in others) or _are_collections(node)


def _are_collections(node: Any) -> bool:
    """Whether a mapping holds the collections of a Flax module: `params` and, perhaps, `batch_stats`, `cache`, ..."""
    return isinstance(node, Mapping) and all(isinstance(part, Mapping) for part in node.values())


def _training_states(tree: Any) -> Iterator[tuple[str, Claim]]:
    for path, node in _nodes(tree, _is_training_state):
        yield path, MODEL_STATE
        params = next((found for found, part in _children(node) if part is _fields(node)["params"]), None)
        if params is None:
            continue
        yield path + params, Claim(role=Role.PARAMS, reason="`params` of a training state")
        nested = _fields(node)["params"]
        if (
            isinstance(nested, Mapping) and "params" in nested and _are_collections(nested)
        ):  # `params` holds all collections of the module
            yield path + params, MODEL_STATE
            yield (
                f"{path}{params}['params']",
                Claim(role=Role.PARAMS, reason="the collection `params` of a Flax module"),
            )


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the direct children of a node with their paths."""
    for keys, child in jax.tree_util.tree_leaves_with_path(node, is_leaf=lambda part: part is not node):
        yield jax.tree_util.keystr(keys), child


def _equinox_modules(tree: Any) -> Iterator[tuple[str, Claim]]:
    if "equinox" not in sys.modules:
        return
    for path, module in _nodes(tree, is_equinox_module):
        for keys, leaf in jax.tree_util.tree_leaves_with_path(module):
            is_float = has_own(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact)
            if is_float:
                yield path + jax.tree_util.keystr(keys), INEXACT


# Roles of NNX variables by class name; subclasses inherit the role.
_NNX_ROLES = {
    "Param": Role.PARAMS,
    "OptState": Role.OPTIMIZER_STATE,
    "OptArray": Role.OPTIMIZER_STATE,
    "OptVariable": Role.OPTIMIZER_STATE,
}


def _nnx_variables(tree: Any) -> Iterator[tuple[str, Claim]]:
    if "flax" not in sys.modules:
        return
    for path, variable in _nodes(tree, lambda node: is_defined_in("flax", node, name="Variable")):
        names = [cls.__name__ for cls in type(variable).__mro__]
        role = next((_NNX_ROLES[name] for name in names if name in _NNX_ROLES), Role.OTHER_STATE)
        yield path, Claim(role=role, reason=f"an NNX variable of type {names[0]}")
