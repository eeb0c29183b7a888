"""Whether the fast tests notice a planted fault: a random sample of mutations of one package, by Cosmic Ray.

    pip install cosmic-ray
    python tests/mutation.py analysis --sample 60 --seed 1 --at-least 0.9

It changes one place of the package at a time (a comparison, a number, a condition), in this working tree. It then runs
the fast tests until one fails: those of the package that import the changed module, then the others of the package,
then all others. It prints the count after
each mutation, and a diff of each that no test notices: either the mutation is equivalent to the original, or a test is
missing. The exit code is 0 if at least the given share is noticed, 1 otherwise, and 2 if the tests fail without a
mutation or no mutation ran. CI runs it every week with a new seed.
"""

from __future__ import annotations

import argparse
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.modules import filter_paths, find_modules
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome

# All that the fast tests are, as `.ci/run` has them. A mutation that no test of its package notices meets the others.
_FAST = (
    "tests/unit/analysis",
    "tests/unit/sources/test_memory_snapshot.py",
    "tests/unit/sources/test_tensorrt_log.py",
    "tests/unit/sources/test_torch_categories.py",
    "tests/unit/sources/test_torch_trace.py",
    "tests/unit/sources/test_varying_model.py",
    "tests/unit/studies",
    "tests/unit/reports",
    "tests/unit/profiler_cli",
    "tests/golden",
    "tests/property",
)
_RECORDS = "tests/unit/test_records.py"
_COMMANDS = ("tests/unit/profiler_cli/test_one_verdict.py", "tests/unit/profiler_cli/test_pressure_everywhere.py")
_TESTS = {
    "analysis": (
        "tests/unit/analysis",
        "tests/unit/sources/test_memory_snapshot.py",
        "tests/unit/sources/test_tensorrt_log.py",
        "tests/unit/sources/test_torch_categories.py",
        "tests/unit/sources/test_torch_trace.py",
        "tests/unit/sources/test_varying_model.py",
        "tests/property/test_analysis_laws.py",
        "tests/property/test_any_order.py",
        "tests/property/test_caching_allocator_laws.py",
        "tests/property/test_collective_laws.py",
        "tests/property/test_roofline_laws.py",
        "tests/golden",
        _RECORDS,
    ),
    "studies": (
        "tests/unit/studies",
        "tests/golden/test_advice_golden.py",
        "tests/golden/test_explain_golden.py",
        "tests/property/test_fit_laws.py",
        "tests/property/test_fit_techniques_laws.py",
        _RECORDS,
        *_COMMANDS,
    ),
    "reports": (
        "tests/unit/reports",
        "tests/unit/studies/test_explain.py",
        "tests/unit/studies/test_serving.py",
        "tests/golden",
        _RECORDS,
        *_COMMANDS,
    ),
}
# Without the operators on `|` and on decorators: `|` also writes types, and no decorator here is a condition. `is` does
# not become `==`, since the two agree on enums and None.
_COMPARISONS = "Eq|NotEq|Lt|LtE|Gt|GtE"
_OPERATORS = re.compile(
    rf"core/(ReplaceComparisonOperator_(({_COMPARISONS})_({_COMPARISONS})|Is_IsNot|IsNot_Is)"
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
    start = time.monotonic()
    baseline = subprocess.run(_test_command(_test_files(asked.package)), capture_output=True, text=True)
    if baseline.returncode:
        print(baseline.stdout, baseline.stderr, "The tests fail without a mutation.", sep="\n", file=sys.stderr)
        return 2
    timeout = 60 + 5 * (time.monotonic() - start)  # a mutation can make a loop endless
    num_run = num_noticed = 0
    for mutation in _sample(asked.package, random.Random(asked.seed), asked.sample):
        tests = _test_files(asked.package, mutation.module_path)
        result = mutate_and_test([mutation], shlex.join(_test_command(tests)), timeout)
        if result.worker_outcome is not WorkerOutcome.NORMAL:
            continue
        num_run += 1
        survives = result.test_outcome is TestOutcome.SURVIVED
        num_noticed += not survives
        print(f"{num_noticed} of {num_run}: {mutation.module_path}:{mutation.start_pos[0]}", flush=True)
        if survives:
            print(result.diff, end="\n\n", flush=True)
    if not num_run:
        print(f"Cosmic Ray ran no mutation of {asked.package}.", file=sys.stderr)
        return 2
    noticed = num_noticed / num_run
    print(f"{asked.package}: {num_noticed} of {num_run} mutations noticed ({noticed:.0%})")
    return 1 if noticed < asked.at_least else 0


def _sample(package: str, rng: random.Random, size: int) -> list[MutationSpec]:
    with tempfile.TemporaryDirectory() as folder, use_db(str(Path(folder) / "session.sqlite")) as database:
        init(filter_paths(find_modules([Path("memprof", package)]), []), database, {})
        mutations = [mutation for item in database.work_items for mutation in item.mutations]
    possible = [mutation for mutation in mutations if _OPERATORS.fullmatch(mutation.operator_name)]
    # Folders are read in no order, and one seed is to give one sample.
    possible.sort(key=lambda each: (each.module_path, each.operator_name, each.occurrence))
    return rng.sample(possible, min(size, len(possible)))


def _test_files(package: str, module: Path = Path("memprof.py")) -> list[str]:
    """The files of the fast tests: those of the package first, and of these those that import the module."""
    own = _files(_TESTS[package])
    imported = ".".join(module.with_suffix("").parts)
    own.sort(key=lambda file: imported not in file.read_text(encoding="utf-8"))
    return [str(file) for file in dict.fromkeys((*own, *_files(_FAST)))]


def _files(tests: Sequence[str]) -> list[Path]:
    return [file for each in tests for file in sorted(Path(each).rglob("test_*.py")) or [Path(each)]]


def _test_command(tests: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]


if __name__ == "__main__":
    raise SystemExit(main())
