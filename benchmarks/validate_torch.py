"""PyTorch's steps: what memprof predicts on shapes alone, beside what the caching allocator counts on the device.

    python -m benchmarks.validate_torch [-o RESULT.json] [--markdown RESULT.md] [--jobs 4]

Each step is measured in a process of its own, which is plain PyTorch, and traced in another, which sees no device. The
steps are built-in workloads, models of transformers (if it is installed) and the scripts of `tests/torch_scripts`.

    live        `requested_bytes` of the allocator at its peak, beside the live peak
    allocated   `max_memory_allocated`, beside the sizes of the blocks
    reserved    `max_memory_reserved`, beside the footprint

Errors are (predicted - measured) / measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import memprof
from benchmarks.record import write_record
from benchmarks.validate import accuracy, error_percent
from memprof.reports.units import format_bytes

_TRANSFORMER = (
    *("fp32", "bf16", "fp16", "bf16-params", "remat", "bf16+remat", "bf16+accum4", "bf16+flash", "remat-mlp"),
    *("remat-dots", "bf16+chunked-loss=8", "no-foreach", "fused", "zero-grads", "save-on-cpu"),
    *("prune=0.5", "opt=sgd", "opt=adafactor", "opt=rmsprop", "opt=adagrad"),
)
_MLP = ("fp32", "bf16", "opt=sgd", "accum4", "no-foreach", "fused")
_OF_TRANSFORMERS = "transformers: "
_MODELS = ("GPT-2, 4 layers", "Llama, 4 layers", "BERT, 4 layers", "T5, 2 layers", "ViT, base, 8 images")
_SCRIPTS = Path(__file__).parents[1] / "tests" / "torch_scripts"
_STEPS = (
    *(f"transformer gpt2 {techniques}" for techniques in _TRANSFORMER),
    *(f"mlp base {techniques}" for techniques in _MLP),
    *(f"{_OF_TRANSFORMERS}{model}" for model in _MODELS),
    *sorted(path.name for path in _SCRIPTS.glob("*.py")),
)
_NUMBERS = ("live_bytes", "allocated_bytes", "reserved_bytes")
_NUM_STEPS = 3
_SECONDS = 120.0


def measure(step: str) -> dict[str, Any]:
    """Run a step on the device, as a plain program of PyTorch."""
    import runpy

    import torch

    if step.endswith(".py"):
        sys.argv = [step]
        runpy.run_path(str(_SCRIPTS / step), run_name="__main__")
    else:
        spec = _spec(step)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(_NUM_STEPS):
            _run(spec)
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {
        "live_bytes": stats["requested_bytes.all.peak"],
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "num_alloc_retries": stats["num_alloc_retries"],
        "device": torch.cuda.get_device_name(),
    }


def _spec(step: str) -> Any:
    """Build a step on the host, and move its model and its batch to the device."""
    import torch
    from torch.utils._pytree import tree_map

    spec = _on_host(step)
    spec.model.to("cuda")
    spec.optimizer.load_state_dict(spec.optimizer.state_dict())  # Adagrad has its state from the start
    return replace(
        spec, batch=tree_map(lambda each: each.to("cuda") if isinstance(each, torch.Tensor) else each, spec.batch)
    )


def _on_host(step: str) -> Any:
    """Build a step with valid indices in its batch."""
    import torch
    from torch.utils._pytree import tree_map

    from memprof.sources.torch.step_spec import TorchStepSpec

    if step.startswith(_OF_TRANSFORMERS):
        from benchmarks.mem_tracker import MODELS, loss

        model, batch = MODELS[step.removeprefix(_OF_TRANSFORMERS)]()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        return TorchStepSpec(model=model, optimizer=optimizer, loss_fn=loss, batch=batch)
    from memprof.workloads.torch.build import build
    from memprof.workloads.torch.plan import plan

    workload, preset, techniques = step.split()
    spec = build(plan(workload, preset=preset, overrides=(), techniques=techniques))
    tree_map(lambda each: each.zero_() if isinstance(each, torch.Tensor) else each, spec.batch)
    return spec


def _run(spec: Any) -> None:
    """Run one step."""
    for part in spec.batch if spec.num_minibatches > 1 else [spec.batch]:
        loss = spec.loss_fn(spec.model, part)
        if spec.num_minibatches > 1:
            loss = loss / spec.num_minibatches
        (loss if spec.scaler is None else spec.scaler.scale(loss)).backward()
    spec.optimizer.step() if spec.scaler is None else spec.scaler.step(spec.optimizer)
    if spec.scaler is not None:
        spec.scaler.update()
    spec.optimizer.zero_grad(set_to_none=not spec.zero_grads)


def predict(step: str) -> dict[str, Any]:
    """Trace a step on shapes alone."""
    from memprof.analysis.pipeline import analyze

    if step.startswith(_OF_TRANSFORMERS):
        from benchmarks.mem_tracker import MODELS, traced

        report = analyze(traced(MODELS[step.removeprefix(_OF_TRANSFORMERS)], "9.0"))
    else:
        if step.endswith(".py"):
            asked = [str(_SCRIPTS / step)]
        else:
            workload, preset, techniques = step.split()
            asked = [workload, "--framework", "torch", "--preset", preset, "-t", techniques]
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable,
                "-m",
                "memprof",
                "run",
                *asked,
                "--target",
                "h100-80gb",
                "-o",
                "it.memprof",
                "-q",
            ]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            report = memprof.load(Path(folder, "it.memprof")).report
    assert report.allocator is not None
    return {
        "live_bytes": report.live_peak_bytes,
        "allocated_bytes": report.allocator.allocated_bytes,
        "reserved_bytes": report.footprint_bytes,
    }


def _in_process(what: str, step: str) -> dict[str, Any]:
    """Measure or predict in a process of its own: the numbers, or an error."""
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="") if what == "predict" else dict(os.environ)
    command = [sys.executable, "-m", "benchmarks.validate_torch", "--only", what, step]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SECONDS, env=environment
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {_SECONDS:g} s"}
    if done.returncode:
        return {
            "error": done.stderr.strip().splitlines()[-1][:400] if done.stderr.strip() else f"exit {done.returncode}"
        }
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _error_percent(row: Mapping[str, Any], name: str) -> float | None:
    return error_percent(row["predicted"].get(name), row["measured"].get(name))


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a table."""
    lines = ["| step |", "|---|"]
    for kind in ("live", "allocated", "reserved"):
        lines[0] += f" {kind}, predicted | measured | error |"
        lines[1] += "---:|---:|---:|"
    lines[0] += " note |"
    lines[1] += "---|"
    for row in rows:
        cells = [row["step"]]
        for name in _NUMBERS:
            error = _error_percent(row, name)
            cells += [
                *(format_bytes(row[kind][name]) if name in row[kind] else "-" for kind in ("predicted", "measured")),
                "-" if error is None else f"{error:+.2f}%",
            ]
        cells.append("; ".join(row[kind]["error"] for kind in ("predicted", "measured") if "error" in row[kind]))
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(accuracy(name, (_error_percent(row, name) for row in rows)) for name in _NUMBERS)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("steps", nargs="*", default=_STEPS, metavar="STEP")
    parser.add_argument("--only", choices=("measure", "predict"), help="one step, in this process")
    parser.add_argument("--jobs", type=int, default=4, help="steps at a time; a card of 80 GB has room for four")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the result as a table")
    asked = parser.parse_args()
    if asked.only:
        print(json.dumps({"measure": measure, "predict": predict}[asked.only](asked.steps[0])))
        return
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(asked.jobs) as measuring, ThreadPoolExecutor(asked.jobs) as predicting:
        measured = [measuring.submit(_in_process, "measure", step) for step in asked.steps]
        predicted = [predicting.submit(_in_process, "predict", step) for step in asked.steps]
        for step, one, other in zip(asked.steps, measured, predicted, strict=True):
            rows.append({"step": step, "measured": one.result(), "predicted": other.result()})
            write_record(asked.output, rows, package="torch")
            if asked.markdown:
                asked.markdown.write_text(markdown(rows))
    print(markdown(rows), end="")


if __name__ == "__main__":
    main()
