"""The arguments of a step: abstract, by name, and leaf by leaf with their roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from memprof.analysis.capture import ArgumentLeaf
from memprof.analysis.categories import Role
from memprof.capture import xla_adapter
from memprof.capture.jitting import JittedStep, argument_names, several_devices
from memprof.capture.roles.by_type import nnx_variables
from memprof.capture.roles.by_use import follow
from memprof.capture.roles.claim import Claim
from memprof.capture.roles.infer import UNTOLD, Leaf, disagreements, infer_roles
from memprof.capture.roles.paths import all_prefixes, longest_prefix
from memprof.capture.targets.choose import ChosenTarget
from memprof.errors import MemprofError, WorkloadError


def abstract_arguments(step: JittedStep, target: ChosenTarget, memory_kinds: Mapping[str, str]) -> JittedStep:
    """The step with shapes and dtypes on the target in place of arrays. Numbers and static values stay.

    Args:
        memory_kinds: the memory that arguments live in, by path prefix, where it is not the device's own.

    Raises:
        MemprofError: an argument is sharded over several devices.
    """

    def abstract(path: str, value: Any) -> Any:
        if not (hasattr(value, "shape") and hasattr(value, "dtype")):
            return value
        num_devices = getattr(getattr(value, "sharding", None), "num_devices", 1)
        if num_devices > 1:
            raise several_devices(f"{path} is sharded", num_devices)
        prefix = longest_prefix(path, memory_kinds)
        sharding = target.sharding
        if prefix is not None:
            # A device that is not there lists no memories and forgets the kind: it is said again after lowering.
            sharding = sharding or jax.sharding.SingleDeviceSharding(target.device)
            sharding = sharding.with_memory_kind(memory_kinds[prefix])
        dtype = jax.dtypes.canonicalize_dtype(value.dtype, allow_extended_dtype=True)
        weak_type = bool(getattr(value, "weak_type", False))
        return jax.ShapeDtypeStruct(value.shape, dtype, sharding=sharding, weak_type=weak_type)

    def all_abstract(name: str, tree: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda keys, value: abstract(name + jax.tree_util.keystr(keys), value), tree
        )

    names, _ = argument_names(step)
    args = tuple(all_abstract(name, argument) for name, argument in zip(names, step.args, strict=True))
    kwargs = {name: all_abstract(name, argument) for name, argument in step.kwargs.items()}
    return JittedStep(fn=step.fn, args=args, kwargs=kwargs)


def argument_leaves(
    step: JittedStep, traced: Any, lowered: jax.stages.Lowered, roles: Mapping[str, Role | str]
) -> tuple[tuple[ArgumentLeaf, ...], tuple[str, ...]]:
    """All leaves of the step's arguments, and sentences about roles that are in doubt.

    Args:
        step: with the arguments as the user gave them.
        roles: those that the user gives, by path prefix.

    Raises:
        MemprofError: a role that the user gives is none, or is for a path that is not there.
        WorkloadError: the step uses a value that is none of its own.
    """
    infos = jax.tree.leaves(traced.args_info)
    if len(traced.jaxpr.jaxpr.invars) != len(infos):
        raise WorkloadError(
            "The step uses a traced value that another function has kept (a tracer leak); return such values instead of"
            " storing them"
        )
    arguments = _by_name(step)
    paths = _leaf_paths(traced, len(infos), nnx_variables(arguments))
    owners = [_owner(path, arguments) for path in paths]
    program = follow(traced.jaxpr, _numbered(_parts(paths, owners)))
    given = _given_roles(roles, paths)
    leaves = [
        Leaf(
            path=path,
            argument=owner,
            shape=tuple(aval.shape),
            dtype=aval.dtype,
            use=use,
            given=None if (prefix := longest_prefix(path, given)) is None else given[prefix],
        )
        for path, owner, aval, use in zip(paths, owners, jax.tree.leaves(traced.in_avals), program.uses, strict=True)
    ]
    claims = infer_roles(arguments, leaves, program)
    parameter_numbers = {flat: number for number, flat in enumerate(xla_adapter.kept_arguments(lowered, len(leaves)))}
    used = [(leaves[flat], claims[flat]) for flat in sorted(parameter_numbers)]
    doubts = [*_untold(used), *_in_doubt(used)]
    return tuple(
        ArgumentLeaf(
            path=leaf.path,
            role=claim.role,
            shape=leaf.shape,
            dtype=str(leaf.dtype),
            size_bytes=xla_adapter.argument_bytes(leaf),
            donated=bool(info.donated),
            parameter_number=parameter_numbers.get(flat),
        )
        for flat, (leaf, claim, info) in enumerate(zip(leaves, claims, infos, strict=True))
    ), tuple(doubts)


def _by_name(step: JittedStep) -> dict[str, Any]:
    names, _ = argument_names(step)
    return {**dict(zip(names, step.args, strict=True)), **step.kwargs}


def _leaf_paths(traced: Any, num_leaves: int, variables: frozenset[str]) -> list[str]:
    """The paths of the leaves as JAX names them; an NNX variable goes by its own path, not by that of its value."""
    names = xla_adapter.argument_paths(traced) or [None] * num_leaves
    paths = [name or f"args[{number}]" for number, name in enumerate(names)]
    return [own if (own := path.removesuffix(".value")) in variables else path for path in paths]


def _owner(path: str, arguments: Mapping[str, Any]) -> str:
    return longest_prefix(path, arguments) or path


def _parts(paths: Sequence[str], owners: Sequence[str]) -> list[str]:
    """What each leaf is a part of: its argument, or the argument's own part where the step has only one."""
    if len(set(owners)) > 1:
        return list(owners)
    return [([*all_prefixes(path)][-2:] or [path])[0] for path in paths]


def _numbered(names: Sequence[str]) -> list[int]:
    numbers: dict[str, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


def _given_roles(roles: Mapping[str, Role | str], paths: Sequence[str]) -> dict[str, Role]:
    known = {
        path[:stop] for path in paths for stop in range(1, len(path) + 1) if path[stop : stop + 1] in ("", ".", "[")
    }
    given = {}
    for prefix, role in roles.items():
        if prefix not in known:
            raise MemprofError(
                f"a role is given for '{prefix}', but the step has no such argument; its arguments are"
                f" {_shortened(sorted({path.split('[')[0].split('.')[0] for path in paths}))}"
            )
        try:
            given[prefix] = Role(role)
        except ValueError as error:
            raise MemprofError(f"'{role}' is no role; give {prefix} one of {', '.join(Role)}") from error
    return given


def _untold(used: Sequence[tuple[Leaf, Claim]]) -> list[str]:
    untold = [leaf for leaf, claim in used if claim is UNTOLD]
    if not untold:
        return []
    size = sum(xla_adapter.argument_bytes(leaf) for leaf in untold)
    return [
        f"What {_shortened([leaf.path for leaf in untold])} ({size:,} bytes) is for could not be told, so it counts as"
        f" other_state; where it is something else, say so with --role '{untold[0].path}=batch' (or params, or"
        " optimizer_state) or roles=."
    ]


def _in_doubt(used: Sequence[tuple[Leaf, Claim]]) -> list[str]:
    guessed = [(leaf, claim) for leaf, claim in used if leaf.given is None]
    return disagreements([leaf for leaf, _ in guessed], [claim for _, claim in guessed])


def _shortened(names: Sequence[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
