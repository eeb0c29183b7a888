"""How much slower steps are under `memprof watch`: a script that times its own steps, with it and without it.

    python -m benchmarks.watched.slowdown [-o RESULT.json] [--pairs N]

Each pair of runs is of the same script, one after the other, in turns. What is compared is the processor time of a step
and its wall time; compiling is before the first one that counts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

_SCRIPT = """
import time
import jax, jax.numpy as jnp

@jax.jit
def step(params, x):
    loss, gradients = jax.value_and_grad(lambda p: jnp.mean(jnp.tanh(x @ p["a"]) @ p["b"]))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

params, x = {"a": jnp.ones((64, 256)), "b": jnp.ones((256, 8))}, jnp.ones((32, 64))
for _ in range(100):
    params, loss = step(params, x)
jax.block_until_ready(params)
wall, processor = time.perf_counter(), time.process_time()
for number in range(NUM_STEPS):
    params, loss = step(params, x)
    if number % 100 == 0:
        loss.block_until_ready()
jax.block_until_ready(params)
print("step us", (time.perf_counter() - wall) / NUM_STEPS * 1e6, (time.process_time() - processor) / NUM_STEPS * 1e6)
"""


def main() -> None:
    """Time both, and print the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40_000)
    given = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {"python": [], "memprof watch": []}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "steps.py"
        script.write_text(_SCRIPT.replace("NUM_STEPS", str(given.steps)), encoding="utf-8")
        for _ in range(given.pairs):
            for name, command in (("python", []), ("memprof watch", ["-m", "memprof", "watch", "--keep", "0"])):
                found[name].append(_step_microseconds([sys.executable, *command, str(script)]))
                print(name, *(f"{each:.1f}" for each in found[name][-1]), flush=True)
    result = {
        name: {"wall_us": median(wall for wall, _ in times), "processor_us": median(used for _, used in times)}
        for name, times in found.items()
    }
    print(result)
    if given.output:
        given.output.write_text(json.dumps({"steps": given.steps, **result}, indent=1) + "\n", encoding="utf-8")


def _step_microseconds(command: list[str]) -> tuple[float, float]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = re.search(r"step us ([\d.]+) ([\d.]+)", ended.stdout)
    assert found, ended.stderr
    return float(found[1]), float(found[2])


if __name__ == "__main__":
    main()
