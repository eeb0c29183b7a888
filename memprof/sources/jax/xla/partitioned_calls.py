"""Calls that XLA's partitioner asks JAX to divide among devices, for a compile in another process.

JAX divides such a call, for example cuDNN's attention on a mesh, with Python functions
(`jax.experimental.custom_partitioning`). They stay in the process that lowers the program, and the program names them
by their address. Here they get names that other processes know, too:

    module, calls = with_portable_calls(module)
    with known_calls(program, sharding):  # in any process with the same libraries
        ...                               # compile the module
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import getclosurevars
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from memprof.errors import MemprofError
from memprof.sources.jax.xla.portable_program import PortableProgram

_TARGET = b"CustomSPMDPartitioning"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call, without what belongs to one process.

    Attributes:
        name: its name in the program.
        axes: the names and lengths of the axes of its mesh; empty if it is known by its devices alone.
        platforms: the platforms for which it is lowered.
        rest: the other fields of JAX's record.
    """

    name: bytes
    axes: tuple[tuple[str, int], ...]
    platforms: tuple[str, ...]
    rest: dict[str, Any]


_OF_PROCESS = ("mesh", "module_context", "to_mesh_pspec_sharding")


def with_portable_calls(module: bytes) -> tuple[bytes, bytes]:
    """Rename the calls of a program by their order, and describe them.

    Returns:
        The program, equal for equal steps, and the description. If a function of a call cannot be pickled, the program
        as it is and an empty description: this process alone can compile it.
    """
    if _TARGET not in module:
        return module, b""
    from jax._src import custom_partitioning

    every = custom_partitioning._sharding_callbacks.items()
    here = sorted(((key, info) for key, info in every if key in module), key=lambda each: module.find(each[0]))
    calls, renamed = [], module
    for number, (key, info) in enumerate(here):
        name = str(number).zfill(len(key)).encode()  # of the same length, because bytecode contains lengths
        renamed = renamed.replace(key, name)
        decodes = getclosurevars(info.to_mesh_pspec_sharding).nonlocals["decode_shardings"]
        calls.append(
            _Call(
                name=name,
                axes=tuple(info.mesh.shape.items()) if decodes else (),
                platforms=tuple(info.module_context.platforms),
                rest={field: value for field, value in vars(info).items() if field not in _OF_PROCESS},
            )
        )
    try:
        return renamed, pickle.dumps(calls, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError):  # a function within another, or of an unusual type
        return module, b""


@contextmanager
def known_calls(program: PortableProgram, sharding: jax.sharding.Sharding) -> Iterator[None]:
    """Let this process divide the calls of a program during its compile.

    Args:
        sharding: a sharding on the devices of the compile.

    Raises:
        MemprofError: only another process can divide them.
    """
    from jax._src import custom_partitioning

    known = custom_partitioning._sharding_callbacks
    try:
        calls: list[_Call] = pickle.loads(program.partitioned_calls) if program.partitioned_calls else []
    except (ImportError, AttributeError) as error:
        raise _only_elsewhere(f": {error}") from error
    if _TARGET in program.module and not calls and not any(name in program.module for name in known):
        raise _only_elsewhere("")
    records = {call.name: _record(call, sharding) for call in calls}
    known.update(records)  # weak references: the records live as long as the block
    yield


def _only_elsewhere(reason: str) -> MemprofError:
    return MemprofError(
        "the step divides a call among devices with functions that only its own process has (custom_partitioning"
        f"{reason}): memprof run compiles it, other commands cannot"
    )


def _record(call: _Call, sharding: Any) -> Any:
    from jax._src import custom_partitioning, sharding_impls

    devices = np.array(sharding._device_assignment, dtype=object)
    names, sizes = [name for name, _ in call.axes], [size for _, size in call.axes]
    mesh = jax.sharding.Mesh(devices.reshape(sizes) if names else np.empty((), dtype=object), names)

    def to_sharding(of_xla: Any, num_dimensions: int) -> Any:
        if of_xla is None:
            return None
        if mesh.empty:
            return sharding_impls.GSPMDSharding(tuple(devices), of_xla)
        spec = sharding_impls.parse_flatten_op_sharding(of_xla, mesh)[0]
        return jax.sharding.NamedSharding(
            mesh, jax.sharding.PartitionSpec(*spec, *[None] * (num_dimensions - len(spec)))
        )

    return custom_partitioning._ShardingCallbackInfo(
        mesh=mesh,
        module_context=SimpleNamespace(platforms=call.platforms, backend=devices[0].client),
        to_mesh_pspec_sharding=to_sharding,
        **call.rest,
    )
