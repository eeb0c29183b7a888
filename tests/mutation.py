"""Whether the fast tests notice a planted fault: a random sample of mutations of one package, by Cosmic Ray.

    pip install cosmic-ray
    python tests/mutation.py analysis --sample 60 --seed 1 --at-least 0.9

It changes one place of the package at a time (a comparison, a number, a condition), in this working tree, and runs the
tests that belong to it. It prints each mutation that no test notices as a diff: either the mutation is equivalent to
the original, or a test is missing. The exit code is 0 if at least the given share is noticed, 1 otherwise, and 2 if the
tests fail without a mutation or no mutation ran. CI runs it every week with a new seed.
"""

from __future__ import annotations

import argparse
import random
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from cosmic_ray.commands import execute, init
from cosmic_ray.config import ConfigDict
from cosmic_ray.modules import filter_paths, find_modules
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkResult

_TESTS = {
    "analysis": "tests/unit/analysis tests/golden tests/property/test_analysis_laws.py tests/property/test_any_order.py"
    " tests/property/test_caching_allocator_laws.py tests/property/test_collective_laws.py"
    " tests/property/test_roofline_laws.py",
    "studies": "tests/unit/studies tests/property/test_fit_laws.py tests/property/test_fit_techniques_laws.py",
    "reports": "tests/unit/reports tests/unit/studies/test_explain.py tests/golden",
}
# A comparison turned, a number off by one, a condition dropped. Without the operators on `|` (it also writes types), on
# decorators (they say what a record has), and of `is` in place of `==` (it rarely makes a difference).
_OPERATORS = re.compile(
    r"core/(ReplaceComparisonOperator_(Lt|LtE|Gt|GtE)_(Lt|LtE|Gt|GtE|NotEq)"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is|In_NotIn|NotIn_In)"
    r"|NumberReplacer|AddNot|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceTrueWithFalse|ReplaceFalseWithTrue"
    r"|ReplaceBinaryOperator_(Add|Sub|Mul|Div|FloorDiv)_(Add|Sub|Mul|FloorDiv)"
    r"|ReplaceUnaryOperator_(Delete_Not|USub_UAdd)|ReplaceContinueWithBreak|ZeroIterationForLoop)"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", choices=_TESTS)
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-least", type=float, default=0.0, metavar="SHARE")
    asked = parser.parse_args()
    test_command = f"{shlex.quote(sys.executable)} -m pytest -q -x -p no:cacheprovider {_TESTS[asked.package]}"
    baseline = subprocess.run(shlex.split(test_command), capture_output=True, text=True)
    if baseline.returncode:
        print(baseline.stdout, baseline.stderr, "The tests fail without a mutation.", sep="\n", file=sys.stderr)
        return 2
    config = ConfigDict({"test-command": test_command, "timeout": 600.0, "distributor": {"name": "local"}})
    with tempfile.TemporaryDirectory() as folder, use_db(str(Path(folder) / "session.sqlite")) as database:
        init(filter_paths(find_modules([Path("memprof", asked.package)]), []), database, {})
        _keep_sample(database, random.Random(asked.seed), asked.sample)
        execute(database, config)
        results = [
            (item, result)
            for item, result in database.completed_work_items
            if result.worker_outcome is WorkerOutcome.NORMAL
        ]
    survivors = [result for _, result in results if result.test_outcome is TestOutcome.SURVIVED]
    for survivor in survivors:
        print(survivor.diff, end="\n\n")
    if not results:
        print(f"Cosmic Ray ran no mutation of {asked.package}.", file=sys.stderr)
        return 2
    noticed = 1 - len(survivors) / len(results)
    print(f"{asked.package}: {len(results) - len(survivors)} of {len(results)} mutations noticed ({noticed:.0%})")
    return 1 if noticed < asked.at_least else 0


def _keep_sample(database: WorkDB, rng: random.Random, size: int) -> None:
    """Skip all mutations but a sample."""
    jobs = [
        item.job_id
        for item in database.work_items
        if all(_OPERATORS.fullmatch(each.operator_name) and not _is_of_decorator(each) for each in item.mutations)
    ]
    kept = set(rng.sample(jobs, min(size, len(jobs))))
    skipped = WorkResult(worker_outcome=WorkerOutcome.SKIPPED)
    database.set_multiple_results([item.job_id for item in database.work_items if item.job_id not in kept], skipped)


def _is_of_decorator(mutation: MutationSpec) -> bool:
    line = Path(mutation.module_path).read_text(encoding="utf-8").splitlines()[mutation.start_pos[0] - 1]
    return line.lstrip().startswith("@")


if __name__ == "__main__":
    raise SystemExit(main())
