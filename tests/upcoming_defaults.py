"""Hold the reports under each switch of JAX that is to become a default against those without it.

    python tests/upcoming_defaults.py > benchmarks/results/upcoming_defaults-jax-VERSION.md

JAX says of a switch that it "will be enabled by default in future versions", or that it exists "while we transition
users". Under such a switch the traced program, its op names and the compiled program may differ. Where XLA compiles the
same program, the report must be the same, but for op names and source lines.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
from jax._src import config as jax_config

from memprof.analysis.hlo.hlo_proto import parse_proto
from memprof.analysis.hlo.program_decoding import decode_program
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.errors import MemprofError
from memprof.reports.json.report import report_json
from memprof.sources.jax.compile import compile_step
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.tracing.step import StepSpec
from memprof.sources.jax.xla.plan import with_plan
from memprof.workloads.build import build_step

_ANNOUNCEMENTS = ("will be enabled by default in future versions", "exist only briefly, while we transition users")
_SIZES = ("seq_len=32", "max_seq_len=32", "num_layers=2")
# Texts of JAX's metadata (op names and source lines), what is made of them, the names and positions that XLA gives, and
# the tools.
_LEFT_OUT = frozenset(
    {
        "op",
        "source",
        "by_source",
        "rule",
        "evidence",
        "advice",
        "name",
        "start",
        "end",
        "offset",
        "toolchain",
        "timings",
    }
)


class Outcome(StrEnum):
    """What a switch changes in a step."""

    EQUAL = "equal"
    OTHER_PROGRAM = "other program"
    REFUSED = "JAX refuses"
    DIFFERS = "DIFFERS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The facts of a report that must not change, and the compiled instructions by opcode and shape."""

    facts: Mapping[str, Any]
    instructions: Counter[tuple[str, str]]


def upcoming_switches() -> tuple[str, ...]:
    """The switches that JAX announces as defaults to be, and that are off today."""
    return tuple(
        sorted(
            name
            for name, (_, _, described) in jax_config.config.meta.items()
            if any(each in " ".join(str(described.get("help")).split()) for each in _ANNOUNCEMENTS)
            and jax_config.config.values[name] is False
        )
    )


@contextmanager
def switched_on(switches: Sequence[str]) -> Iterator[None]:
    """JAX with these switches on, and without what it traced before."""
    jax.clear_caches()
    for name in switches:
        jax.config.update(name, True)
    try:
        yield
    finally:
        for name in switches:
            jax.config.update(name, False)
        jax.clear_caches()


def compiled(make: Callable[[], StepSpec], switches: Sequence[str]) -> Compiled | None:
    """A step compiled under some switches; None: JAX itself cannot trace, differentiate or lower it."""
    with switched_on(switches), tempfile.TemporaryDirectory() as folder:
        try:
            done = compile_step(make(), resolve("cpu"), dump_folder=Path(folder), progress=lambda _: None)
        except MemprofError:
            raise
        except Exception:  # of JAX: whatever it lacks under a switch
            return None
        capture = with_plan(done.planned).capture
        return Compiled(facts=_facts(capture), instructions=_instructions(capture))


def outcome(plain: Compiled | None, changed: Compiled | None) -> Outcome:
    """What changed from one compile to the other."""
    if plain is None or changed is None:
        return Outcome.REFUSED
    if plain.instructions != changed.instructions:
        return Outcome.OTHER_PROGRAM
    return Outcome.EQUAL if plain.facts == changed.facts else Outcome.DIFFERS


def differences(plain: Compiled, changed: Compiled) -> list[str]:
    """The facts that differ, one line each."""
    return [
        f"{name}: {plain.facts[name]} -> {changed.facts[name]}"
        for name in plain.facts
        if plain.facts[name] != changed.facts[name]
    ]


def _facts(capture: Capture) -> dict[str, Any]:
    built = msgspec.to_builtins(report_json(analyze(capture)))
    facts = {name: _without(value) for name, value in built.items() if name not in _LEFT_OUT}
    facts["buffers"] = sorted(map(repr, facts["buffers"]))  # the order of equal sizes is that of op names
    return facts


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without(each) for name, each in value.items() if name not in _LEFT_OUT}
    return [_without(each) for each in value] if isinstance(value, (list, tuple)) else value


def _instructions(capture: Capture) -> Counter[tuple[str, str]]:
    program = decode_program(parse_proto(capture.hlo_proto))
    return Counter((each.opcode, repr(each.shape)) for each in program.instructions)


def _built_in(workload: str, *techniques: str) -> Callable[[], StepSpec]:
    sizes = _SIZES if workload == "transformer" else ()
    return lambda: build_step(workload=workload, preset="tiny", overrides=sizes, techniques=techniques)


@jax.custom_vjp
def _clipped(x: jax.Array) -> jax.Array:
    return jnp.tanh(x)


_clipped.defvjp(lambda x: (jnp.tanh(x), x), lambda x, gradient: (jnp.clip(gradient, -1, 1) * (1 - jnp.tanh(x) ** 2),))


@jax.custom_jvp
def _smooth(x: jax.Array) -> jax.Array:
    return jnp.log1p(jnp.exp(x))


@_smooth.defjvp
def _smooth_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    ((x,), (change,)) = (primals, tangents)
    return _smooth(x), jax.nn.sigmoid(x) * change


def _own_step() -> StepSpec:
    """Custom derivatives, nested checkpoints in a scan, a closed-over constant, softmax, a key and a penalty."""
    table = jnp.arange(64.0 * 64).reshape(64, 64) / 4096  # hoisted to an argument, in a JAX to come

    @jax.checkpoint
    def block(x: jax.Array, weights: jax.Array) -> jax.Array:
        return _smooth(jax.checkpoint(lambda x, w: _clipped(x @ w))(x, weights) @ table)

    def loss(params: dict[str, jax.Array], batch: jax.Array, key: jax.Array) -> jax.Array:
        def energy(x: jax.Array) -> jax.Array:
            out, _ = jax.lax.scan(lambda x, weights: (block(x, weights), None), x, params["layers"])
            return jnp.sum(jax.nn.softmax(out @ params["head"]) ** 2)

        noisy = batch + 0.1 * jax.random.normal(key, batch.shape)
        return energy(noisy) + jnp.mean(jax.grad(energy)(noisy) ** 2)

    def step(params: dict[str, jax.Array], batch: jax.Array, key: jax.Array) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, batch, key)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    params = {
        "layers": jax.ShapeDtypeStruct((3, 64, 64), jnp.float32),
        "head": jax.ShapeDtypeStruct((64, 64), jnp.float32),
    }
    batch = jax.ShapeDtypeStruct((32, 64), jnp.float32)
    return StepSpec(step, (params, batch, jax.eval_shape(lambda: jax.random.key(0))), donate_argnums=(0,))


STEPS: dict[str, Callable[[], StepSpec]] = {
    "own step": _own_step,
    **{f"mlp {name}": _built_in("mlp", *name.split("+")) for name in ("baseline", "bf16+donate", "fp16")},
    **{
        f"transformer {name}": _built_in("transformer", *name.split("+"))
        for name in (
            "baseline", "bf16", "donate", "accum2", "accum2-loop", "chunked-loss=2", "scan", "remat", "remat+scan",
            "remat-act", "remat-attn", "remat-mlp", "remat-dots", "remat-dots+scan", "remat-mlp-attn+accum2",
        )
    },
}  # fmt: skip


def main() -> int:
    """Print the table. Exits with 1 if a report differs where the program does not."""
    began, switches = time.monotonic(), upcoming_switches()
    rows: list[tuple[str, str, Outcome]] = []
    for step, make in STEPS.items():
        plain = compiled(make, ())
        works = []
        for switch in switches:
            changed = compiled(make, (switch,))
            rows.append((step, switch, outcome(plain, changed)))
            works += [switch] if changed is not None else []
            _explain(step, switch, plain, changed)
        changed = compiled(make, works)
        rows.append((step, "all together", outcome(plain, changed)))
        _explain(step, "all together", plain, changed)
        print(f"{step}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    columns = (*switches, "all together")
    print(f"jax {jax.__version__}, Python {sys.version.split()[0]}, cpu: python tests/upcoming_defaults.py\n")
    print("| step |", " | ".join(f"`{name}`" for name in columns), "|")
    print("|---|" + "---|" * len(columns))
    for step in STEPS:
        print(f"| {step} |", " | ".join(found for name, _, found in rows if name == step), "|")
    return int(any(found is Outcome.DIFFERS for *_, found in rows))


def _explain(step: str, switch: str, plain: Compiled | None, changed: Compiled | None) -> None:
    if plain is not None and changed is not None and outcome(plain, changed) is Outcome.DIFFERS:
        for line in differences(plain, changed):
            print(f"{step}, {switch}: {line[:600]}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
