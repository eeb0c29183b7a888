"""What each technique changes, for the tables of the documentation's technique pages.

    python -m benchmarks.technique_effects -o benchmarks/results/technique_effects-DATE.json

Compiles GPT-2 with 4 of its 12 layers for an H100: once for each technique with the company that it needs to show, and
once for that company alone, which is what it is set against. Takes about ten minutes on two cores. A technique that
cannot be compiled here (`flash` without cuDNN) is among the failures.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from memprof.analysis.records.report import Report
from memprof.sources.jax.processes.launch import default_num_jobs
from memprof.sources.jax.targets.resolve import resolve
from memprof.studies.side_by_side import Rows, SideBySide, compile_rows, set_side_by_side
from memprof.studies.subject import find_subject
from memprof.workloads.registry import techniques
from memprof.workloads.technique import Technique

WORKLOAD, PRESET, OVERRIDES, TARGET = "transformer", "gpt2", ("num_layers=4",), "h100-80gb"


def with_and_without(technique: Technique) -> tuple[str, str]:
    """The row that has the technique, and the row without it."""
    company = (*technique.needs, *technique.shows_with)
    with_it = "+".join((*company, technique.example))
    return with_it, "+".join(company) or "baseline"


def effect(technique: Technique, reports: dict[str, Report]) -> dict[str, object] | None:
    """One row of the result; None where a row gave no report."""
    with_it, without = with_and_without(technique)
    if with_it not in reports or without not in reports or with_it == without:
        return None
    before, after = reports[without], reports[with_it]
    if after.label == before.label:
        return None
    compared = set_side_by_side([before, after], (), reference=before.label).effects[1]
    return {
        "technique": technique.name,
        "row": with_it,
        "against": without,
        "before_bytes": before.footprint_bytes,
        "after_bytes": after.footprint_bytes,
        "categories_delta": {category.value: delta for category, delta in compared.categories_delta.items() if delta},
        "flops_before": before.flops,
        "flops_after": after.flops,
        "host_bytes": after.program.host_bytes,
        "took_effect": compared.took_effect,
        "evidence": compared.evidence,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="where to write the result")
    output = parser.parse_args().output

    of_one_device = [technique for technique in techniques() if technique.axis is None]
    wanted = dict.fromkeys(row for technique in of_one_device for row in with_and_without(technique))
    subject = find_subject(WORKLOAD, preset=PRESET, overrides=OVERRIDES)
    rows = Rows(subject=subject, techniques=tuple(wanted))
    tasks, _ = rows.tasks(resolve(TARGET))
    compared = SideBySide([task.label for task in tasks])
    compile_rows(
        tasks,
        compared,
        num_jobs=default_num_jobs(),
        progress=lambda row, stage: print(f"{row}: {stage}", flush=True),
        keep=lambda capture: None,
    )
    reports = {report.label.removeprefix(f"{WORKLOAD} "): report for report in compared.reports}
    effects = [effect(technique, reports) for technique in of_one_device]
    result = {
        "command": "python -m benchmarks.technique_effects",
        "workload": WORKLOAD,
        "preset": PRESET,
        "overrides": list(OVERRIDES),
        "target": TARGET,
        "toolchain": asdict(compared.reports[0].toolchain),
        "effects": [each for each in effects if each is not None],
        "failures": [asdict(failure) for failure in compared.failures],
    }
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
