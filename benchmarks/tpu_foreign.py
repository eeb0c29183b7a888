"""Training steps of other libraries on a TPU and on a GPU: do roles and categories agree, and what differs otherwise?

    python -m benchmarks.tpu_foreign [-o RESULT.json] [NAME ...]

The programs are those of `tests/libraries/judged`, written and judged by hand by others. Each is profiled for v5e and
for h100-80gb. Roles must be the same. Of the values that are live at the peak on both (the same operation, dtype and
shape) the categories are set side by side, constants aside. What is live on one of them only comes from another
schedule, another fusion or VMEM. Needs the extra `tpu`; a program whose library is missing is skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import memprof
from memprof.analysis.records.categories import Phase
from memprof.analysis.records.live_buffer import array_type
from memprof.analysis.records.report import Report

FOLDER = Path(__file__).parents[1] / "tests" / "libraries" / "judged"
TARGETS = ("h100-80gb", "v5e")
# Their libraries are dependencies of the tests.
PROGRAMS = (
    *("ctc_linen", "distill_linen", "fp8_linen", "lora_nnx", "maml_jax"),
    *("moco_linen", "moe_nnx", "muon_haiku", "pinn_eqx", "ppo_flax", "s5_equinox"),
)
_LEAST = 0.01  # of the footprint


def main() -> int:
    """Profile each program, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=PROGRAMS)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    rows = []
    for name in arguments.names:
        try:
            rows.append(_row(name))
        except ImportError as error:
            print(f"{name}: skipped ({error})", flush=True)
            continue
        print(json.dumps(rows[-1], indent=1), flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 0 if all(not row["other_roles"] for row in rows) else 1


def _row(name: str) -> dict[str, Any]:
    step, args = _program(name)
    gpu, tpu = (memprof.profile(step, *args, target=target).report for target in TARGETS)
    gpu_values, tpu_values = _values(gpu), _values(tpu)
    shared = gpu_values.keys() & tpu_values.keys()
    other = {
        f"{array_type(key[1], key[2])} {key[0]}": [sorted(gpu_values[key]), sorted(tpu_values[key])]
        for key in sorted(shared)
        if gpu_values[key].isdisjoint(tpu_values[key])
    }
    held = {
        report.target.name: Counter({c.value: n for c, n in report.categories.items() if n}) for report in (gpu, tpu)
    }
    return {
        "program": name,
        "jax": tpu.toolchain.jax,
        "libtpu": tpu.toolchain.libtpu,
        "num_arguments": len(tpu.arguments),
        "other_roles": [
            f"{a.path}: {a.role.value}, {b.role.value}"
            for a, b in zip(gpu.arguments, tpu.arguments, strict=True)
            if a.role is not b.role
        ],
        "num_shared_values": len(shared),
        "other_categories": other,
        "footprint_bytes": {report.target.name: report.footprint_bytes for report in (gpu, tpu)},
        "padding_bytes": tpu.padding_bytes,
        "vmem_bytes": tpu.memory_spaces.get("vmem", 0),
        "unattributed_bytes": {name: each.get("unattributed", 0) for name, each in held.items()},
        "categories": held,
        "differences": {
            category: held["v5e"][category] - held["h100-80gb"][category]
            for category in sorted(held["v5e"].keys() | held["h100-80gb"].keys())
            if abs(held["v5e"][category] - held["h100-80gb"][category]) >= _LEAST * gpu.footprint_bytes
        },
    }


def _values(report: Report) -> dict[tuple[str, str, tuple[int, ...]], set[str]]:
    """The categories of what is live at the peak, by operation, dtype and shape."""
    found: dict[tuple[str, str, tuple[int, ...]], set[str]] = {}
    for buffer in report.buffers:
        if buffer.op and buffer.phase is not Phase.CONSTANT:
            found.setdefault((buffer.op, buffer.dtype, buffer.shape), set()).add(buffer.category.value)
    return found


def _program(name: str) -> tuple[Any, tuple[Any, ...]]:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    made: tuple[Any, tuple[Any, ...]] = module.make()
    return made


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
