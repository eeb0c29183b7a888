"""What the advice `other_order` promises of programs for eight H100s, and what the flag that it names saves.

    python -m benchmarks.order_savings [-o RESULT.json]

Steps of eight dense layers, data parallel, whose weight gradients XLA delays so that they run beside the sums over
devices; and the transformer of preset `tiny`, divided in several ways. Each is compiled as it is and with the pass
`latency-hiding-scheduler` off. The promise is the live peak in the best other order that was found; it is held against
the live peak that XLA comes to, also where the advice is not given. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import memprof
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.report import Report
from memprof.sources.jax.processes.launch import compile_all
from memprof.sources.jax.targets.resolve import resolve_asked
from memprof.sources.jax.xla.portable_program import CompileSettings
from memprof.studies.subject import find_subject

NUM_LAYERS = 8
PASS = ("xla_disable_hlo_passes", "latency-hiding-scheduler")
TRANSFORMERS = ("fsdp", "fsdp+remat", "fsdp+tp", "fsdp+tp+bf16", "tp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """A step of dense layers; `whole_results`: the updated weights are asked for whole on each device."""

    width: int
    num_examples: int
    optimizer: str = "sgd"
    dtype: str = "float32"
    donated: bool = True
    whole_results: bool = True


STEPS = (
    Layers(width=1024, num_examples=65536),
    Layers(width=1024, num_examples=65536, optimizer="adam"),
    Layers(width=1024, num_examples=65536, donated=False),
    Layers(width=1024, num_examples=65536, whole_results=False),
    Layers(width=1024, num_examples=32768),
    Layers(width=512, num_examples=65536),
    Layers(width=512, num_examples=65536, optimizer="adam"),
    Layers(width=512, num_examples=65536, dtype="bfloat16"),
    Layers(width=512, num_examples=32768),
    Layers(width=512, num_examples=32768, optimizer="adam"),
    Layers(width=512, num_examples=32768, donated=False),
    Layers(width=256, num_examples=32768, optimizer="adam"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One program: its live peak, that of the other order, and that with the pass off."""

    step: str
    live_peak_bytes: int
    promised_bytes: int
    true_bytes: int
    any_order_bytes: int


def compile_layers(step: Layers, options: dict[str, Any]) -> Report:
    mesh = memprof.mesh("h100-80gb", {"data": 8})
    tx = {"sgd": optax.sgd(0.1), "adam": optax.adam(1e-3)}[step.optimizer]
    whole = NamedSharding(mesh, P())

    def train_step(state: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            hidden = x
            for weight in weights:
                hidden = jnp.tanh(hidden @ weight)
            return jnp.mean(hidden * hidden)

        weights, opt_state = state
        value, grads = jax.value_and_grad(loss)(weights)
        updates, opt_state = tx.update(grads, opt_state, weights)
        weights = optax.apply_updates(weights, updates)
        if step.whole_results:
            weights = jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, whole), weights)
        return (weights, opt_state), value

    def shape(leaf: Any, *spec: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, P(*spec)))

    weights = [shape(jax.ShapeDtypeStruct((step.width, step.width), step.dtype))] * NUM_LAYERS
    opt_state = jax.tree.map(shape, jax.eval_shape(tx.init, weights))
    x = shape(jax.ShapeDtypeStruct((step.num_examples, step.width), step.dtype), "data")
    donate = 0 if step.donated else ()
    return memprof.profile(train_step, (weights, opt_state), x, donate_argnums=donate, compiler_options=options).report


def compile_transformer(techniques: str) -> Report:
    subject = find_subject("transformer", preset="tiny", overrides=["batch_size=256"], roles=[], arguments=[])
    target = resolve_asked("h100-80gb", runs=False, mesh="fsdp=4,tp=2", hosts=None)
    settings = CompileSettings(complete=False, use_cache=True, timeout_seconds=None, cluster=None)
    task = subject.task(techniques, target=target, label=techniques, settings=settings)
    (result,) = compile_all([task], num_jobs=1, progress=lambda label, stage: None)
    if result.fresh is None:
        raise result.error or AssertionError(techniques)
    return analyze(result.fresh.capture, result.fresh.decoded)


def row(step: str, as_it_is: Report, followed: Report) -> Row:
    schedule = as_it_is.schedule
    assert schedule is not None
    return Row(
        step=step,
        live_peak_bytes=as_it_is.live_peak_bytes,
        promised_bytes=schedule.other_bytes,
        true_bytes=followed.live_peak_bytes,
        any_order_bytes=schedule.bound_bytes,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the result as JSON")
    arguments = parser.parse_args()

    rows = []
    for step in STEPS:
        reports = (compile_layers(step, options) for options in ({}, dict([PASS])))
        rows.append(row(", ".join(f"{name}={value}" for name, value in asdict(step).items()), *reports))
        print(rows[-1], flush=True)
    for name in TRANSFORMERS:
        reports = (compile_transformer(each) for each in (name, f"{name}+xla:{'='.join(PASS)}"))
        rows.append(row(f"transformer tiny, fsdp=4,tp=2, {name}", *reports))
        print(rows[-1], flush=True)
    if arguments.output is not None:
        result = {"command": "python -m benchmarks.order_savings", "jax": jax.__version__}
        result["rows"] = [asdict(each) for each in rows]
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
