"""Two public reports of memory on eight GPUs, made again without them.

    python -m benchmarks.published_meshes offloading
    python -m benchmarks.published_meshes initialization

Prints a markdown table with the published number beside memprof's. docs/published-tables.md explains the differences.
Sources: "Unable to use residual offloading with scan and remat" (jax-ml/jax, issue 23869), and "Memory issue when
randomly initializing large parameters, sharding cannot help" (google/flax, issue 3701). Needs the `deviceless` extra.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import memprof

NUM_LAYERS, BATCH, SEQUENCE, WIDTH = 32, 64, 8192, 2048
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What its author saw on a device, and what memprof says of it, in GiB."""

    name: str
    published: str
    profile: memprof.Profile

    def __str__(self) -> str:
        report = self.profile.report
        sizes = (self.profile.footprint_bytes, report.compiler.temp_bytes, report.program.host_bytes)
        return f"| {self.name} | {self.published} | " + " | ".join(f"{size / _GIB:.2f}" for size in sizes) + " |"


def offloading() -> Iterator[Row]:
    """A stack of residual MLPs under `scan` and `jax.checkpoint`, whose named values are kept, or kept on the host.

    The author's mesh is 4 by 2, batch over `data`, the hidden units and the sequence between the layers over `model`.
    """
    mesh = memprof.mesh("h100-80gb", {"data": 4, "model": 2})

    def shape(spec: P, *dimensions: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dimensions, jnp.float32, sharding=NamedSharding(mesh, spec))

    weights = {
        "up": shape(P(None, None, "model"), NUM_LAYERS, WIDTH, WIDTH),
        "down": shape(P(None, "model"), NUM_LAYERS, WIDTH, WIDTH),
    }
    x, targets = shape(P("data"), BATCH, SEQUENCE, WIDTH), shape(P("data"), BATCH)
    rows = {
        "nothing kept": ((), (), "20.27, host 0"),
        "hidden values kept": (("hidden",), (), "35.30"),
        "hidden values on the host": ((), ("hidden",), "19.75, host 16.0"),
        "residual stream on the host": ((), ("residual",), "20.27, host 0"),
    }
    for name, (saved, offloaded, published) in rows.items():
        policy = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=saved,
            names_which_can_be_offloaded=offloaded,
            offload_src="device",
            offload_dst="pinned_host",
        )
        step = partial(_step, policy=policy, between=NamedSharding(mesh, P("data", "model")))
        yield Row(name=name, published=published, profile=memprof.profile(step, weights, x, targets, donate_argnums=0))


def _step(weights: Any, x: Any, targets: Any, *, policy: Callable[..., Any], between: NamedSharding) -> Any:
    def layer(x: Any, layer_weights: Any) -> Any:
        hidden = checkpoint_name(x @ layer_weights["up"], "hidden")
        x = jax.lax.with_sharding_constraint(x + jax.nn.relu(hidden) @ layer_weights["down"], between)
        return checkpoint_name(x, "residual"), None

    def loss(weights: Any) -> Any:
        start = jax.lax.with_sharding_constraint(x, between)
        end, _ = jax.lax.scan(jax.checkpoint(layer, policy=policy, prevent_cse=False), start, weights)
        return jnp.mean(jnp.square(end.mean((1, 2)) - targets))

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda weight, grad: weight - 1e-3 * grad, weights, grads), value


def initialization() -> Iterator[Row]:
    """A kernel of 32 GiB made of random numbers, an eighth of it on each device by the `out_shardings` of its jit."""
    mesh = memprof.mesh("h100-80gb", {"devices": 8})
    init = partial(jax.nn.initializers.lecun_normal(), shape=(32_768, 262_144), dtype=jnp.float32)
    key = jax.eval_shape(partial(jax.random.PRNGKey, 0))
    published = {False: "4.00 + 96.00", True: ""}
    for is_partitionable, seen in published.items():
        with jax.threefry_partitionable(is_partitionable):
            profile = memprof.profile(jax.jit(init, out_shardings=_by_rows(mesh)), key)
        name = f"jax_threefry_partitionable={is_partitionable}"
        yield Row(name=name, published=seen, profile=profile)


def _by_rows(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P("devices"))


TABLES = {"offloading": offloading, "initialization": initialization}


def main() -> int:
    """Compile the rows of a table and print it beside the published numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=sorted(TABLES))
    rows = TABLES[parser.parse_args().table]()
    print(f"8 of `h100-80gb`, jax {jax.__version__}, GiB on a device:\n")
    print("| published row | published | footprint | temp block | host memory |\n|---|---:|---:|---:|---:|")
    for row in rows:
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
