"""Plans of several steps for eight budgets each: kept or not, the compiles, and what is computed again.

    python -m benchmarks.checkpoint_plans [-o RESULT.json] [STEP ...]

A STEP is techniques of the built-in transformer (`bf16+scan`), or a program of `tests/libraries/judged`. The budgets
lie between the smallest footprint of a curve and that of the step as it is. A built-in policy of JAX is matched
if the plan for 1% more than its footprint is no slower, by the time that ranks plans (`ranking_seconds`). The footprint
that was predicted before the last compile is in the rows. A program whose library is missing is skipped.
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
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.plan.plan import DOTS, DOTS_WITHOUT_BATCH, CheckpointPlan, ranking_seconds
from memprof.studies.plan.search import plan_step
from memprof.workloads.build import build_step

JUDGED = Path(__file__).parents[1] / "tests" / "libraries" / "judged"
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
    "ctc_linen",
    "dqn_rlax",
    "forces_jraph",
    "lora_nnx",
    "muon_haiku",
)
SIZES = ("num_layers=8", "hidden_size=1024", "mlp_size=4096", "num_heads=16", "batch_size=8", "seq_len=1024",
          "max_seq_len=1024")  # fmt: skip
_SHARES = (0.05, 0.15, 0.25, 0.4, 0.55, 0.7, 0.8, 0.95)
_CLOSE = 0.03  # of a footprint
_BUILT_IN = (DOTS, DOTS_WITHOUT_BATCH)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", default=_STEPS)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    built_in: list[dict[str, Any]] = []
    target = resolve("h100-80gb")
    for name in asked.steps:
        try:
            spec = spec_of(name)
            curve = _plan(spec, target, 1, with_curve=True).points
        except ImportError as error:
            print(f"{name}: skipped ({error})", flush=True)
            continue
        as_it_is, low = curve[0].footprint_bytes, min(point.footprint_bytes for point in curve)
        print(f"{name}: as it is {as_it_is:,}, the smallest {low:,} bytes", flush=True)
        for share in _SHARES if low < as_it_is else ():
            budget_bytes = int(low + share * (as_it_is - low))
            started = time.perf_counter()
            found = _plan(spec, target, budget_bytes)
            rows.append({
                "step": name, "budget_bytes": budget_bytes, "num_compiles": len(found.points),
                "footprint_bytes": None if found.best is None else found.best.footprint_bytes,
                "recomputed_flops": None if found.best is None else found.best.recomputed_flops,
                "repeated_seconds": None if found.best is None else found.best.repeated_seconds,
                "at_least_seconds": None if found.best is None else found.best.at_least_seconds,
                "last_footprint_bytes": found.points[-1].footprint_bytes,
                "last_predicted_bytes": found.points[-1].predicted_bytes,
                "seconds": round(time.perf_counter() - started, 1),
            })  # fmt: skip
            print(f"    {rows[-1]}", flush=True)
        for each in curve:
            if each.name in _BUILT_IN:
                best = _plan(spec, target, int(1.01 * each.footprint_bytes)).best
                seconds = ranking_seconds([each, *filter(None, [best])])
                built_in.append({
                    "step": name, "policy": each.name,
                    "is_matched": best is not None and seconds(best) <= seconds(each),
                    "footprint_bytes": each.footprint_bytes, "recomputed_flops": each.recomputed_flops,
                    "repeated_seconds": each.repeated_seconds, "at_least_seconds": each.at_least_seconds,
                })  # fmt: skip
                print(f"    {built_in[-1]}", flush=True)
        if asked.output:
            versions = {"jax": version("jax"), "memprof": memprof.__version__}
            found_so_far = {"versions": versions, "rows": rows, "built_in": built_in}
            asked.output.write_text(json.dumps(found_so_far, indent=1) + "\n")
    num_within = sum(row["footprint_bytes"] is not None for row in rows)
    most = max((row["num_compiles"] for row in rows), default=0)
    num_predicted = sum(_is_predicted(row) for row in rows)
    print(
        f"{num_within} of {len(rows)} budgets are kept, in at most {most} compiles;"
        f" {num_predicted} last footprints were predicted within {_CLOSE:.0%};"
        f" {sum(each['is_matched'] for each in built_in)} of {len(built_in)} built-in policies are matched"
    )
    return 0 if num_within == len(rows) else 1


def _is_predicted(row: dict[str, Any]) -> bool:
    predicted, footprint = row["last_predicted_bytes"], row["last_footprint_bytes"]
    return predicted is not None and abs(predicted - footprint) <= _CLOSE * footprint


def _plan(spec: StepSpec, target: Any, budget_bytes: int, *, with_curve: bool = False) -> CheckpointPlan:
    return plan_step(spec, target, budget_bytes=budget_bytes, with_curve=with_curve, progress=lambda stage: None)


def spec_of(name: str) -> StepSpec:
    """Return a step by its name (see above)."""
    path = JUDGED / f"{name}.py"
    if not path.exists():
        if name == "gpt2":
            return build_step(workload="transformer", preset="gpt2", techniques=["bf16"])
        return build_step(workload="transformer", preset="tiny", overrides=SIZES, techniques=[name])
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
