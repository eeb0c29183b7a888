"""Footprints of steps with their gradients accumulated over four minibatches, beside those of the whole batch.

    python -m benchmarks.minibatches [-o RESULT.json] [STEP ...]

A STEP is one of `benchmarks.checkpoint_plans`, or another program of `tests/libraries/judged` that trains. A step whose
examples depend on each other is refused; the reason is in its row. Whether the numbers stay the same is tested as in
`memprof advise`. A program whose library is missing is skipped.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import memprof
from benchmarks.checkpoint_plans import spec_of
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.rewrites import InMinibatches
from memprof.errors import MemprofError
from memprof.sources.jax.checkpointing.minibatches import in_minibatches
from memprof.sources.jax.compile import capture_of, traced_jaxpr
from memprof.sources.jax.targets.resolve import resolve
from memprof.studies.advice.advise import upper_bounds
from memprof.studies.changes.change import Step
from memprof.studies.changes.minibatches import in_parts
from memprof.studies.changes.same_meaning import MeaningCheck

_STEPS = (
    "unet_ema", "tied_lm_nnx", "s5_equinox", "lora_nnx", "distill_linen", "dqn_rlax", "wgan_haiku", "muon_haiku",
    "dit_nnx_ema", "ppo_flax", "pinn_eqx", "impala_haiku", "svi_numpyro", "maml_jax", "moe_nnx", "ctc_linen",
    "forces_jraph", "moco_linen", "keras_cnn", "gp_tinygp", "fp8_linen", "qlora_jax",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", default=_STEPS)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in asked.steps:
        try:
            rows.append({"step": name, **_row(name)})
        except ImportError as error:
            print(f"{name}: skipped ({error})", flush=True)
            continue
        print(rows[-1], flush=True)
        if asked.output:
            versions = {"jax": version("jax"), "memprof": memprof.__version__}
            asked.output.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")
    return 0


def _row(name: str) -> dict[str, Any]:
    spec, target = spec_of(name), resolve("h100-80gb")
    try:
        with in_minibatches(InMinibatches(number=4)):
            traced_jaxpr(spec, target)
    except MemprofError as refusal:
        return {"refusal": str(refusal)}

    def report_of(spec: Any) -> Any:
        fresh = capture_of(spec, target, progress=lambda stage: None)
        return analyze(fresh.capture, fresh.decoded, with_order=False)

    before = report_of(spec)
    step = Step(spec=spec, target=target, report=before, advice=upper_bounds(before))
    (change,) = in_parts(step)
    after = report_of(change.spec)
    return {
        "num_minibatches": change.intent.num_parts,
        "footprint_bytes": before.unpressed.footprint_bytes,
        "accumulated_bytes": after.unpressed.footprint_bytes,
        "recomputed_flops": after.recomputed_flops - before.recomputed_flops,
        "meaning": MeaningCheck(step).of(change).name.lower(),
    }


if __name__ == "__main__":
    raise SystemExit(main())
