"""All access to private or unstable parts of JAX and XLA: small functions, each with the versions it was seen in."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def deviceless_sharding(target_config: str) -> NamedSharding:
    """A sharding on one GPU that need not be there (jax 0.10.2 to 0.12).

    The topology cannot be selected by name: the text proto and the topology string must both be given.

    Args:
        target_config: the text of a `stream_executor.GpuTargetConfigProto`.
    """
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name="", target_config=target_config, topology="1x1x1"
    )
    return NamedSharding(Mesh(np.array(topology.devices), ("device",)), PartitionSpec())


def cuda_plugin_version() -> str | None:
    """`jax-cuda13-plugin 0.12.0`, or None where there is none."""
    for name in ("jax-cuda13-plugin", "jax-cuda12-plugin"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def cuda_folder() -> Path | None:
    """The folder under which JAX tells XLA to look for ptxas and libdevice (jax 0.10.2 to 0.12)."""
    from jax._src.lib import cuda_path

    return None if cuda_path is None else Path(cuda_path)


def disable_compilation_cache() -> None:
    """Turn the persistent compilation cache off: a hit writes no dump (jax 0.10.2 to 0.12)."""
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()


def kept_arguments(lowered: jax.stages.Lowered, num_leaves: int) -> list[int]:
    """The flat indices of the argument leaves that became parameters of the program, in order.

    `jax.jit` drops arguments that the function never uses, which shifts the parameter numbers. Which ones it kept is
    only in a private record (jax 0.10.2 to 0.12).
    """
    kept = lowered._lowering.compile_args.get("kept_var_idx")
    return list(range(num_leaves)) if kept is None else sorted(kept)


def memory_totals(compiled: jax.stages.Compiled) -> dict[str, int]:
    """The fields of `memory_analysis()` in bytes; jax 0.10.2 has no `total_allocation_bytes`."""
    analysis: Any = compiled.memory_analysis()
    fields = {
        "argument_bytes": "argument_size_in_bytes",
        "output_bytes": "output_size_in_bytes",
        "alias_bytes": "alias_size_in_bytes",
        "temp_bytes": "temp_size_in_bytes",
        "peak_memory_bytes": "peak_memory_in_bytes",
        "total_allocation_bytes": "total_allocation_bytes",
    }
    return {ours: getattr(analysis, theirs) for ours, theirs in fields.items() if hasattr(analysis, theirs)}


def argument_bytes(leaf: Any) -> int:
    """Bytes of one abstract argument. Keys of `jax.random` count as the integers that they are made of."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        leaf = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return int(np.prod(leaf.shape, dtype=np.int64)) * int(np.dtype(leaf.dtype).itemsize)
