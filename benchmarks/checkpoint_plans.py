"""Plans of several steps for several budgets: each within its budget, its compiles, and what it computes again.

    python -m benchmarks.checkpoint_plans [-o RESULT.json] [STEP ...]

A STEP is techniques of the built-in transformer (`bf16+scan`), or a program of `tests/libraries/judged`. The budgets
lie between the footprint in which nothing is kept and that of the step as it is. A program whose library is missing is
skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import memprof
from memprof.capture.targets.resolve import resolve
from memprof.capture.tracing.step import StepSpec
from memprof.studies.plan.plan import CheckpointPlan
from memprof.studies.plan.search import plan_step
from memprof.workloads.build import build_step

_JUDGED = Path(__file__).parents[1] / "tests" / "libraries" / "judged"
_STEPS = (
    "bf16",
    "bf16+scan",
    "gpt2",
    "tied_lm_nnx",
    "s5_equinox",
    "unet_ema",
    "wgan_haiku",
    "moe_nnx",
    "distill_linen",
)
_SIZES = ("num_layers=8", "hidden_size=1024", "mlp_size=4096", "num_heads=16", "batch_size=8", "seq_len=1024",
          "max_seq_len=1024")  # fmt: skip
_SHARES = (0.15, 0.4, 0.7)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", default=_STEPS)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    target = resolve("h100-80gb")
    for name in asked.steps:
        try:
            spec = _spec(name)
            least = _plan(spec, target, 1)
        except ImportError as error:
            print(f"{name}: skipped ({error})", flush=True)
            continue
        sizes = {point.name: point.footprint_bytes for point in least.points}
        print(f"{name}: as it is {sizes['as it is']:,}, nothing kept {sizes['nothing kept']:,} bytes", flush=True)
        for share in _SHARES:
            low = min(sizes.values())
            budget_bytes = int(low + share * (sizes["as it is"] - low))
            started = time.perf_counter()
            found = _plan(spec, target, budget_bytes)
            rows.append({
                "step": name, "budget_bytes": budget_bytes, "num_compiles": len(found.points),
                "footprint_bytes": None if found.best is None else found.best.footprint_bytes,
                "recomputed_flops": None if found.best is None else found.best.recomputed_flops,
                "recomputed_flops_of_all": max(point.recomputed_flops for point in found.points),
                "seconds": round(time.perf_counter() - started, 1),
            })  # fmt: skip
            print(f"    {rows[-1]}", flush=True)
    num_within = sum(row["footprint_bytes"] is not None for row in rows)
    print(
        f"{num_within} of {len(rows)} budgets are kept, in at most {max(row['num_compiles'] for row in rows)} compiles"
    )
    if asked.output:
        found_versions = {"jax": version("jax"), "memprof": memprof.__version__}
        asked.output.write_text(json.dumps({"versions": found_versions, "rows": rows}, indent=1) + "\n")
    return 0 if num_within == len(rows) else 1


def _plan(spec: StepSpec, target: Any, budget_bytes: int) -> CheckpointPlan:
    return plan_step(spec, target, budget_bytes=budget_bytes, progress=lambda stage: None)


def _spec(name: str) -> StepSpec:
    path = _JUDGED / f"{name}.py"
    if not path.exists():
        if name == "gpt2":
            return build_step(workload="transformer", preset="gpt2", techniques=["bf16"])
        return build_step(workload="transformer", preset="tiny", overrides=_SIZES, techniques=[name])
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    step, args = module.make()
    return StepSpec(step, args, workload=name)


if __name__ == "__main__":
    raise SystemExit(main())
