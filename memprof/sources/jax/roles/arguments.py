"""The arguments of a step: abstract values, names, and a role for each leaf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Role
from memprof.errors import MemprofError
from memprof.sources.jax.roles.by_type import claims_by_type, nnx_variables
from memprof.sources.jax.roles.by_use import follow
from memprof.sources.jax.roles.cache_needs import Window
from memprof.sources.jax.roles.comes_back import StepEnds
from memprof.sources.jax.roles.infer import UNKNOWN, Leaf, disagreements, infer_roles, trains_nothing, typed_states
from memprof.sources.jax.roles.leaf import Claim, all_prefixes, given_roles, longest_prefix, shortened
from memprof.sources.jax.targets.choose import Devices
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.jitting import Place, TracedStep, several_devices
from memprof.sources.jax.xla import xla_adapter

TRAINS_NOTHING = (
    "This is not a training step: no gradient updates its arguments, so returned state counts as other_state."
)


class _Flow(NamedTuple):
    """Facts about a leaf by data flow; see `ArgumentLeaf`."""

    num_copies: int = 1
    window: tuple[int, ...] = ()
    is_carried: bool | None = None


_UNKNOWN = _Flow()


def place_on(devices: Devices, memory_kinds: Mapping[str, str]) -> Place:
    """Return a function that turns an array into its shape and dtype on the devices of a target.

    Args:
        memory_kinds: the memory kind of arguments outside device memory, by path prefix.
    """

    def place(path: str, value: Any, on_no_device: bool) -> jax.ShapeDtypeStruct:
        own = getattr(value, "sharding", None)
        sharding = None if on_no_device else devices.sharding
        if getattr(own, "num_devices", 1) > 1 or devices.on_device.num_devices > 1:
            # If the step gives no sharding, XLA chooses one, as it does for arrays.
            sharding = own if getattr(own, "num_devices", 1) > 1 else None
            _check_divides(path, value.shape, sharding, devices)
        prefix = longest_prefix(path, memory_kinds)
        if prefix is not None:
            # An absent device lists no memories and loses the kind, so it is set again after lowering.
            sharding = sharding or devices.as_written
            sharding = sharding.with_memory_kind(memory_kinds[prefix])
        dtype = jax.dtypes.canonicalize_dtype(value.dtype, allow_extended_dtype=True)
        weak_type = bool(getattr(value, "weak_type", False))
        return jax.ShapeDtypeStruct(value.shape, dtype, sharding=sharding, weak_type=weak_type)

    return place


def _check_divides(path: str, shape: tuple[int, ...], sharding: Any, devices: Devices) -> None:
    """Raise `MemprofError` if a sharding has no mesh or does not divide the array evenly."""
    if sharding is None:
        return
    if not isinstance(sharding, NamedSharding) or sharding.num_devices != devices.as_written.num_devices:
        raise several_devices(f"{path} is sharded", sharding.num_devices)
    try:
        sharding.shard_shape(shape)
    except ValueError as error:
        raise MemprofError(
            f"{path} has the shape {shape}, which {sharding.spec} on a mesh of {dict(sharding.mesh.shape)} does not "
            "divide evenly: pad it, or shard another dimension"
        ) from error


def argument_leaves(
    step: TracedStep, lowered: jax.stages.Lowered, roles: Mapping[str, Role | str]
) -> tuple[tuple[ArgumentLeaf, ...], tuple[str, ...]]:
    """Return all leaves of the step's arguments, and sentences about doubtful roles.

    Args:
        roles: the user's roles, by path prefix.

    Raises:
        MemprofError: a role of the user is invalid, or its path does not exist.
    """
    paths = _own_paths(step.paths, nnx_variables(step.arguments))
    owners = [longest_prefix(path, step.arguments) or path for path in paths]
    given = _given(roles, paths)
    avals = jit_adapter.argument_avals(step.traced)
    num_tokens = xla_adapter.num_tokens(lowered)
    kept = xla_adapter.kept_arguments(lowered, len(paths))
    parameter_numbers = {flat: number for number, flat in enumerate(kept, num_tokens)}
    if None in given:
        found, doubts, flows = _inferred(step, paths, owners, given, sorted(parameter_numbers))
    else:  # skip following the arguments through the program, which takes as long as lowering
        found, doubts, flows = [role for role in given if role is not None], [], [_UNKNOWN] * len(paths)
    positions = {name: number for number, name in enumerate(step.names)}
    donated = jit_adapter.donated_arguments(step.traced)
    axes = [_mesh_axes(sharding) for sharding in xla_adapter.argument_shardings(lowered)]
    tokens = tuple(_token(number) for number in range(num_tokens))
    return tokens + tuple(
        ArgumentLeaf(
            path=path,
            role=role,
            shape=tuple(aval.shape),
            dtype=str(aval.dtype),
            size_bytes=xla_adapter.argument_bytes(aval),
            donated=is_donated,
            parameter_number=parameter_numbers.get(flat),
            position=positions.get(owner),
            mesh_axes=None if flat not in parameter_numbers else axes[parameter_numbers[flat] - num_tokens],
            num_copies=flows[flat].num_copies,
            window=flows[flat].window,
            is_carried=flows[flat].is_carried,
        )
        for flat, (path, owner, role, aval, is_donated) in enumerate(
            zip(paths, owners, found, avals, donated, strict=True)
        )
    ), tuple(doubts)


def _token(number: int) -> ArgumentLeaf:
    """Return the leaf of a token: a parameter without data that orders effects such as prints."""
    return ArgumentLeaf(
        path=f"tokens[{number}]",
        role=Role.OTHER_STATE,
        shape=(),
        dtype="token",
        size_bytes=0,
        donated=False,
        parameter_number=number,
    )


def _given(roles: Mapping[str, Role | str], paths: Sequence[str]) -> list[Role | None]:
    """Return the role that the user gives each leaf, if any."""
    given = given_roles(roles, paths)
    prefixes = [longest_prefix(path, given) for path in paths]
    return [None if prefix is None else given[prefix] for prefix in prefixes]


def _inferred(
    step: TracedStep, paths: Sequence[str], owners: Sequence[str], given: Sequence[Role | None], used: Sequence[int]
) -> tuple[list[Role], list[str], list[_Flow]]:
    """Infer the role of each leaf and facts about it by data flow. Return sentences about doubtful leaves, too.

    Args:
        used: the leaves that the compiled program keeps.
    """
    by_type = claims_by_type(step.arguments)
    ends = replace(ends_of(step, paths, owners), states=typed_states(by_type, paths))
    program = follow(step.jaxpr, ends)
    leaves = [
        Leaf(path=path, argument=owner, shape=tuple(aval.shape), dtype=aval.dtype, use=use, given=role)
        for path, owner, aval, use, role in zip(
            paths, owners, jit_adapter.argument_avals(step.traced), program.uses, given, strict=True
        )
    ]
    claims = infer_roles(by_type, leaves, program)
    taken = [(leaves[flat], claims[flat]) for flat in used]
    doubts = [*_unknown(taken), *_in_doubt(taken)]
    if not any(given) and trains_nothing(leaves, claims, program):
        doubts.append(TRAINS_NOTHING)
    caches = program.walk.caches
    flows: list[_Flow] = []
    for flat, (leaf, claim) in enumerate(zip(leaves, claims, strict=True)):
        flow = _Flow(is_carried=leaf.use.is_carried)
        if claim.role is Role.KV_CACHE:
            window = _window(caches.window_of(1 << flat), leaf.shape)
            flow = flow._replace(num_copies=caches.copies_in(1 << flat), window=window)
        flows.append(flow)
    return [claim.role for claim in claims], doubts, flows


def _window(window: Window | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    return window if window is not None and window.length in shape else ()


def ends_of(step: TracedStep, paths: Sequence[str], owners: Sequence[str]) -> StepEnds:
    """Return the places of a step's arguments and results."""
    results = jit_adapter.result_tree(step.traced)
    return StepEnds(
        arguments=paths,
        results=[jax.tree_util.keystr(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(results)],
        owners=_numbered(_parts(paths, owners)),
        positions={name: number for number, name in enumerate(step.names)},
        known=jit_adapter.returned_state(step.traced),
        fields=getattr(type(results), "_fields", ()),
    )


def _mesh_axes(sharding: Any) -> tuple[str, ...] | None:
    """Return the mesh axes that an argument is sharded over, or None if it has no such sharding."""
    if not isinstance(sharding, NamedSharding) or sharding.num_devices == 1:
        return None
    parts = (part if isinstance(part, tuple) else (part,) for part in sharding.spec)
    return tuple(axis for part in parts for axis in part if isinstance(axis, str))


def _own_paths(paths: Sequence[str], variables: frozenset[str]) -> list[str]:
    """Return the paths of the leaves. An NNX variable is named by its own path, not by that of its value."""
    return [own if (own := path.removesuffix(".value")) in variables else path for path in paths]


def _parts(paths: Sequence[str], owners: Sequence[str]) -> list[str]:
    """Return the owner of each leaf: its argument, or a direct child if the step has only one argument."""
    if len(set(owners)) > 1:
        return list(owners)
    return [([*all_prefixes(path)][-2:] or [path])[0] for path in paths]


def _numbered(names: Sequence[str]) -> list[int]:
    numbers: dict[str, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


def _unknown(used: Sequence[tuple[Leaf, Claim]]) -> list[str]:
    unknown = [leaf for leaf, claim in used if claim is UNKNOWN]
    if not unknown:
        return []
    size = sum(xla_adapter.argument_bytes(leaf) for leaf in unknown)
    return [
        f"What {shortened([leaf.path for leaf in unknown])} ({size:,} bytes) is for could not be inferred, so it "
        f"counts as other_state; if that is wrong, set its role with --role '{unknown[0].path}=batch' (or params, or "
        "optimizer_state) or roles=."
    ]


def _in_doubt(used: Sequence[tuple[Leaf, Claim]]) -> list[str]:
    guessed = [(leaf, claim) for leaf, claim in used if leaf.given is None]
    return disagreements([leaf for leaf, _ in guessed], [claim for _, claim in guessed])
