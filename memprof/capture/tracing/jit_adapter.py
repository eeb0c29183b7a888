"""What is private or unstable in the jits of JAX, Flax and Equinox: small functions, with the versions seen.

What a compile takes of JAX and XLA is in `xla_adapter.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
from jax.extend import core
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from memprof.capture.xla.xla_adapter import PROCESS_WIDE

_NO_SUCH_AXIS = re.compile(r"Resource axis: (?P<axis>.+?) of (?P<spec>.+?) is not found in mesh: \((?P<axes>.*?),?\)")
_DOES_NOT_DIVIDE = re.compile(
    r"spec=(?P<spec>P.*?\))[,)].* array axis (?P<dimension>\d+) is partitioned (?P<parts>\d+) times, but the dimension"
    r" size is (?P<length>\d+) \(full shape: (?P<shape>\(.*?\))"
)
_INNER_JIT = {"flax": "jitted_fn", "equinox": "_cached"}  # where the jits of the frameworks keep their `jax.jit`


def is_framework_jit(fn: Any) -> bool:
    """Whether a jitted function is Flax's or Equinox's, with a `jax.jit` inside (flax 0.12, equinox 0.13)."""
    return any(hasattr(fn, attribute) for attribute in _INNER_JIT.values())


@contextmanager
def inner_jit_replaced(fn: Any, replacement: Any) -> Iterator[Any]:
    """Have the jit of a framework call something else than its own `jax.jit` for a while (flax 0.12, equinox 0.13).

    Equinox takes arrays for dynamic and everything else for static; here the shapes of arrays are dynamic too.

    Yields:
        The `jax.jit` inside.
    """
    attribute = next(attribute for attribute in _INNER_JIT.values() if hasattr(fn, attribute))
    equinox_jit: Any = sys.modules.get("equinox._jit")
    with PROCESS_WIDE:
        inner = getattr(fn, attribute)
        is_array = getattr(equinox_jit, "is_array", None)
        object.__setattr__(fn, attribute, replacement)
        if is_array is not None:
            equinox_jit.is_array = lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct) or is_array(leaf)
        try:
            yield inner
        finally:
            object.__setattr__(fn, attribute, inner)
            if is_array is not None:
                equinox_jit.is_array = is_array


def jit_options(jitted: Any) -> Any:
    """The options that a function was jitted with: `donate_argnums`, `static_argnums`, ... (jax 0.10.2 to 0.12)."""
    return jitted._jit_info


def jit_shardings(jitted: Any) -> tuple[Any, ...]:
    """What a jit was told of the shardings of its arguments and results (jax 0.10.2 to 0.12)."""
    inner = next((getattr(jitted, name) for name in _INNER_JIT.values() if hasattr(jitted, name)), jitted)
    options = getattr(inner, "_jit_info", None)  # `jax.pmap` has none
    return () if options is None else (*options.in_shardings_leaves, *options.out_shardings_leaves)


def sharding_mistake(error: ValueError) -> str | None:
    """What is wrong with a sharding that does not fit its mesh or its array; None: the error is another one.

    JAX says it in these words (jax 0.10.2 to 0.12).
    """
    message = str(error)
    if found := _NO_SUCH_AXIS.search(message):
        return f"{found['spec']} names the axis {found['axis']}, and the axes of the mesh are {found['axes']}"
    if found := _DOES_NOT_DIVIDE.search(message):
        return (
            f"{found['spec']} divides dimension {found['dimension']} in {found['parts']} parts, which is"
            f" {found['length']} long in an array of the shape {found['shape']}: pad it, or divide another dimension"
        )
    return None


def context_meshes() -> tuple[Mesh | AbstractMesh, ...]:
    """The meshes around the code that runs: of `jax.set_mesh`, and of `with mesh:` (jax 0.10.2 to 0.12)."""
    from jax._src.mesh import thread_resources

    around: Mesh = thread_resources.env.physical_mesh
    return tuple(mesh for mesh in (jax.sharding.get_mesh(), around, jax.sharding.get_abstract_mesh()) if not mesh.empty)


def options_name_devices(options: Any) -> bool:
    """Whether the options of a jit say on which device it runs (jax 0.10.2 to 0.12)."""
    shardings = (*options.in_shardings_leaves, *options.out_shardings_leaves)
    return bool(options.device or options.backend or any(isinstance(each, jax.sharding.Sharding) for each in shardings))


def named_devices(traced: Any) -> tuple[int, frozenset[jax.Device]]:
    """Which devices a traced step names, in shardings and meshes of its own and of its arguments (jax 0.10.2 to 0.12).

    Returns:
        The most devices that one of them spans (1 where there is none), and all devices; an abstract mesh has none.
    """
    spans = [1]
    devices: set[jax.Device] = set()
    pending = [traced._params, *(equation.params for equation in all_equations(traced.jaxpr.jaxpr))]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, (tuple, list)):
            pending.extend(value)
        elif isinstance(value, NamedSharding):
            pending.append(value.mesh)
        elif isinstance(value, AbstractMesh):
            spans.append(value.size)
        elif isinstance(value, (Mesh, jax.sharding.Sharding)):
            found = set(value.devices.flat) - {None} if isinstance(value, Mesh) else value.device_set  # an empty mesh
            spans.append(len(found))
            devices |= found
        elif isinstance(value, jax.Device):
            devices.add(value)
    return max(spans), frozenset(devices)


def all_equations(jaxpr: core.Jaxpr) -> Iterator[Any]:
    """The equations of a jaxpr and of all jaxprs inside it, each once (jax 0.10.2 to 0.12)."""
    pending, seen = [jaxpr], {id(jaxpr)}
    while pending:
        for equation in pending.pop().eqns:
            yield equation
            for inner in core.jaxprs_in_params(equation.params):
                if id(inner) not in seen:
                    seen.add(id(inner))
                    pending.append(inner)


def has_pallas_kernels(traced: Any) -> bool:
    """Whether a traced step calls kernels written in Pallas (jax 0.10.2 to 0.12)."""
    return any(equation.primitive.name == "pallas_call" for equation in all_equations(traced.jaxpr.jaxpr))


def mesh_around(mesh: Mesh) -> AbstractContextManager[Any]:
    """Tell kernels that are traced inside which device they are for (jax 0.10.2 to 0.12)."""
    around: AbstractContextManager[Any] = jax.sharding.use_abstract_mesh(mesh.abstract_mesh)
    return around
