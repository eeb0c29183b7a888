"""Whether a repeated comparison notices each kind of changed input by itself, and compiles nothing without need.

    python -m benchmarks.stale_rows [-o RESULT.json]

For each kind of `tests/changed_inputs.py` the same comparison runs twice after that input alone has changed: the first
run must show the changed array and compile, the second must show it and take the plan from the cache.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

_TESTS = Path(__file__).parents[1] / "tests"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    sys.path.insert(0, str(_TESTS))
    inputs = importlib.import_module("changed_inputs")
    kinds, sizes, write_inputs = inputs.KINDS, inputs.SIZES, inputs.write_inputs
    compare = importlib.import_module("integration.test_changed_inputs").compare
    command = importlib.import_module("integration.command").Command
    found: dict[str, dict[str, bool]] = {}
    with tempfile.TemporaryDirectory() as folder:
        memprof = command.in_folder(Path(folder))
        write_inputs(memprof.folder, frozenset())
        compare(memprof)
        for kind in kinds:
            changed = frozenset({kind})
            for name in ("globbed", "listdir"):
                (memprof.folder / name / "second").unlink(missing_ok=True)
            (memprof.folder / "exists").unlink(missing_ok=True)
            write_inputs(memprof.folder, changed)
            first, again = compare(memprof, changed), compare(memprof, changed)
            right = {each: sizes[2 if each == kind else 1] for each in kinds}
            found[kind] = {
                "is_stale": {**first, "compiles": True} != {**right, "compiles": True},
                "compiles": bool(first["compiles"]),
                "is_stale_again": {**again, "compiles": False} != {**right, "compiles": False},
                "compiles_again": bool(again["compiles"]),
            }
            print(kind, *(f"{name}: {value}" for name, value in found[kind].items()), sep="  ", flush=True)
    wrong = [kind for kind, each in found.items() if list(each.values()) != [False, True, False, False]]
    print(f"{len(found) - len(wrong)} of {len(found)} kinds are right", *wrong)
    if asked.output:
        versions = {"jax": version("jax"), "python": platform.python_version()}
        asked.output.write_text(json.dumps({"versions": versions, "kinds": found}, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
