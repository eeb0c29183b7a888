"""Whether `memprof fit --techniques auto` finds what trying every combination finds.

    python -m benchmarks.fit_techniques [-o RESULT.json]

Small models, all of whose combinations without another optimizer and without host memory are compiled once. Then every
budget that tells two footprints apart is asked for: the answer must fit and cost no more than the cheapest of all that
fit, and the compiles that the search would have made are counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from memprof.analysis.pipeline import analyze
from memprof.sources.jax.processes.launch import compile_all, compile_in_child, default_num_jobs, recomputed_in_child
from memprof.sources.jax.processes.task import CountingTask
from memprof.sources.jax.targets.resolve import resolve
from memprof.studies.fit.cheapest import CheapestSearch, Combination, combine
from memprof.studies.fit.ladder import find_ladder
from memprof.studies.subject import Subject, find_subject

_COUNTS = ("num_combinations", "num_budgets", "num_no_worse", "num_missed", "mean_compiles", "most_compiles")
_KEPT_FAMILIES = ("structure", "precision", "loss", "checkpointing", "accumulation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A small model on a target."""

    workload: str
    overrides: tuple[str, ...]
    target: str
    families: tuple[str, ...] = _KEPT_FAMILIES

    def __str__(self) -> str:
        return f"{self.workload} tiny {' '.join(self.overrides)}, {self.target}"


CASES = (
    Case(workload="mlp", overrides=("batch_size=8",), target="cpu"),
    Case(workload="mlp", overrides=("batch_size=64",), target="l4"),
    Case(
        workload="transformer",
        overrides=("batch_size=8",),
        target="l4",
        families=("structure", "precision", "checkpointing"),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="file for the results, as JSON")
    output: Path | None = parser.parse_args().output
    results = []
    print(f"| case | {' | '.join(_COUNTS)} |\n|---|{'---:|' * len(_COUNTS)}")
    for case in CASES:
        sizes = footprints(case)
        results.append({"case": str(case), **judge(sizes), "footprint_bytes": {c.label: s for c, s in sizes.items()}})
        last = results[-1]
        print(f"| {case} | {' | '.join(str(last[key]) for key in _COUNTS)} |", flush=True)
    if output:
        command = "python -m benchmarks.fit_techniques"
        output.write_text(
            json.dumps({"command": command, "python": sys.version.split()[0], "cases": results}, indent=1)
        )


def footprints(case: Case) -> dict[Combination, int]:
    """The footprint of every combination, all of them compiled."""
    subject = find_subject(case.workload, preset="tiny", overrides=case.overrides)
    plain = analyze(
        compile_in_child(subject.task("", target=resolve(case.target)), progress=lambda stage: None).capture
    )
    ladder = find_ladder(
        subject,
        plain,
        lambda labels: recomputed_in_child(
            CountingTask(recipes=tuple(map(subject.plan, labels)), target=resolve(case.target)),
            progress=lambda stage: None,
        ),
    )
    families = [family for family in ladder.families if family.name in case.families]
    valid = (each for each in combine(families) if subject.applies(each.label))
    combinations = {each.label: each for each in valid if not each.cost.moves_to_host}
    return {combinations[label]: size for label, size in _compile(subject, case.target, list(combinations)).items()}


def _compile(subject: Subject, target: str, labels: list[str]) -> dict[str, int]:
    tasks = [subject.task(label, target=resolve(target), label=label) for label in labels]
    sizes = {}
    for result in compile_all(tasks, num_jobs=default_num_jobs(), progress=lambda label, stage: None):
        assert result.fresh is not None, result.error
        sizes[result.task.label] = analyze(result.fresh.capture, result.fresh.decoded).footprint_bytes
    return sizes


def judge(sizes: Mapping[Combination, int]) -> dict[str, int | float]:
    """Search with every budget that tells two footprints apart, on the table of all of them."""
    counts, num_no_worse, num_missed = [], 0, 0
    combinations = sorted(sizes, key=lambda each: each.cost)
    plain = next(each for each in combinations if not each.label)
    budgets = sorted(set(sizes.values()))
    for budget_bytes in budgets:
        search, count = CheapestSearch(combinations, budget_bytes=budget_bytes), 1
        search.record(plain, sizes[plain])
        while (combination := search.next()) is not None:
            search.record(combination, sizes[combination])
            count += 1
        cheapest = min(each.cost for each, size in sizes.items() if size <= budget_bytes)
        assert search.best is None or sizes[search.best] <= budget_bytes
        num_no_worse += search.best is not None and search.best.cost == cheapest
        num_missed += search.best is None
        counts.append(count)
    return {
        "num_combinations": len(sizes),
        "num_budgets": len(budgets),
        "num_no_worse": num_no_worse,
        "num_missed": num_missed,
        "mean_compiles": round(statistics.mean(counts), 1),
        "most_compiles": max(counts),
    }


if __name__ == "__main__":
    main()
