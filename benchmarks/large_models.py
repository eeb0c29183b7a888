"""Transformers of 7 and 70 billion parameters over 64 and 256 GPUs that are not there, held against arithmetic.

    python -m benchmarks.large_models [-o RESULT.json] [--only TEXT]

Each is one `memprof run --mesh fsdp=N` as a whole process, with an empty cache of plans. Parameters, optimizer state
and kept activations of a device are computed from the sizes by hand and must be those of the report, to the byte. Says
the processor time of all processes, and the memory of the largest. Needs the `deviceless` extra; a minute for each.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

SEQUENCE, VOCABULARY = 4096, 32_000
_MEMPROF = "from memprof.profiler_cli.main import main; main()"
_BECOME_PARENT_OF_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER: so that the time of all processes is known


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeModel:
    """A Transformer with two matrices in an MLP, sharded over as many devices as the batch has sequences."""

    label: str
    num_layers: int
    width: int
    num_heads: int
    mlp_width: int
    num_devices: int

    @property
    def command(self) -> list[str]:
        """What a user types."""
        sizes = {
            "num_layers": self.num_layers, "hidden_size": self.width, "num_heads": self.num_heads,
            "mlp_size": self.mlp_width, "vocab_size": VOCABULARY, "seq_len": SEQUENCE, "max_seq_len": SEQUENCE,
            "batch_size": self.num_devices, "tied_embeddings": "false", "dropout_rate": 0,
            "attention_dropout_rate": 0, "embedding_dropout_rate": 0,
        }  # fmt: skip
        overrides = [part for name, value in sizes.items() for part in ("--set", f"{name}={value}")]
        technique = "bf16+scan+remat+donate+fsdp"
        of_devices = ("--target", "h100-80gb", "--mesh", f"fsdp={self.num_devices}")
        return ["memprof", "run", "transformer", "--preset", "gpt2", *of_devices, "-t", technique, *overrides]

    @property
    def num_params(self) -> int:
        """Weights, biases and the two vectors of each normalisation."""
        attention = 4 * (self.width**2 + self.width)
        mlp = 2 * self.width * self.mlp_width + self.mlp_width + self.width
        layers = self.num_layers * (attention + mlp + 4 * self.width)
        embeddings = (VOCABULARY + SEQUENCE) * self.width
        return layers + embeddings + 2 * self.width + (self.width + 1) * VOCABULARY

    @property
    def expected_bytes(self) -> dict[str, int]:
        """Of one device: a sequence, and its share of all else. Everything divides evenly here."""
        params = 4 * self.num_params // self.num_devices
        return {
            "params": params,
            "optimizer_state": 2 * params + 4,  # two moments, and a counter on every device
            "batch": 2 * 4 * SEQUENCE,  # the tokens and the labels
        }

    @property
    def layer_inputs_bytes(self) -> int:
        """What checkpointed layers keep of one sequence: their inputs, in bfloat16."""
        return self.num_layers * SEQUENCE * self.width * 2


MODELS = (
    LargeModel(label="7B", num_layers=32, width=4096, num_heads=32, mlp_width=16_384, num_devices=64),
    LargeModel(label="70B", num_layers=80, width=8192, num_heads=64, mlp_width=36_864, num_devices=256),
)


def main() -> int:
    """Run each, compare, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(_BECOME_PARENT_OF_ORPHANS, 1)
    rows = [_run(model) for model in MODELS if arguments.only in model.label]
    print(json.dumps(rows, indent=1))
    if arguments.output:
        arguments.output.write_text(json.dumps({"python": platform.python_version(), "rows": rows}, indent=1) + "\n")
    return 0 if all(row["equal"] for row in rows) else 1


def _run(model: LargeModel) -> dict[str, object]:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _MEMPROF, *model.command[1:], "--format", "json", "--no-save"],
            env={**os.environ, "MEMPROF_CACHE_DIR": folder},
            capture_output=True,
            text=True,
            check=True,
        )
        wall_seconds = time.perf_counter() - started
        _wait_for_all()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads(done.stdout)
    found = report["categories"]
    expected = model.expected_bytes
    return {
        **asdict(model),
        "jax": report["toolchain"]["jax"],
        "num_params": model.num_params,
        "expected_bytes": expected,
        "equal": all(found[name] == size for name, size in expected.items()),
        "layer_inputs_bytes": model.layer_inputs_bytes,
        "footprint_bytes": report["footprint_bytes"],
        "live_peak_bytes": report["live_peak_bytes"],
        "compiler_peak_bytes": report["compiler"]["peak_memory_bytes"],
        "categories": {name: size for name, size in found.items() if size},
        "wall_seconds": round(wall_seconds, 1),
        "processor_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "largest_process_bytes": after.ru_maxrss * 1024,
        "command": " ".join(model.command),
    }


def _wait_for_all() -> None:
    """For the processes that the command has left behind; they end with it."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(main())
