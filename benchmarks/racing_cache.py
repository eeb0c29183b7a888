"""Processes that use one cache of plans at the same time, and are killed: does any of them ever see half a plan?

    python -m benchmarks.racing_cache --processes 8 --rounds 100 [-o RESULT.json]

Every round starts so many processes at once on one cache, which holds fewer plans than they use, so that plans are
written, found, replaced and let go all the time, and now and then the cache is cleared. One process of each round is
killed somewhere. Whatever is found must be the plan that belongs to its key, and at the end of a round every file in
the cache must be a whole plan, or the unnamed rest of a process that was killed. Compiles nothing.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memprof.sources.jax.xla.plan import Plan
from memprof.sources.jax.xla.plan_cache import CLAIMS, SUFFIX, PlanCache

_NUM_KEYS, _NUM_USES, _PLAN_BYTES = 24, 40, 200_000  # a plan of the tiny MLP has so many
_LIMIT_BYTES = 16 * _PLAN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """How often plans were found, kept and the cache cleared by those that lived, and what was wrong."""

    num_found: int
    num_kept: int
    num_cleared: int
    num_failed: int
    num_plans_left: int
    num_damaged: int
    num_unnamed: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8, help="how many at once")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the result as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cache = PlanCache(folder=Path(folder) / "plans", limit_bytes=_LIMIT_BYTES)
        rounds = list(_rounds(cache, options.processes, options.rounds))
    sums = Counter[str]()
    for each in rounds:
        sums.update({name: getattr(each, name) for name in Round.__slots__})
    print(f"{options.rounds} rounds of {options.processes} processes, one of each killed: {dict(sums)}")
    if options.output is not None:
        result = {
            "command": f"python -m benchmarks.racing_cache --processes {options.processes} --rounds {options.rounds}",
            "machine": {"system": sys.platform, "num_processors": os.cpu_count(), "python": platform.python_version()},
            "keys": _NUM_KEYS,
            "uses_of_each_process": _NUM_USES,
            "plan_bytes": _PLAN_BYTES,
            "limit_bytes": _LIMIT_BYTES,
            "sums": dict(sums),
        }
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if sums["num_failed"] or sums["num_damaged"]:
        sys.exit("a process failed, or a plan is damaged")


def _rounds(cache: PlanCache, num_processes: int, num_rounds: int) -> Iterator[Round]:
    forking, choose = multiprocessing.get_context("fork"), random.Random(0)
    for number in range(num_rounds):
        counts = [forking.SimpleQueue() for _ in range(num_processes)]  # one for all would be locked by who is killed
        running = [
            forking.Process(target=_use, args=(cache, number * num_processes + each, counts[each]))
            for each in range(num_processes)
        ]
        for process in running:
            process.start()
        time.sleep(choose.uniform(0.0, 0.5))
        running[0].kill()
        for process in running:
            process.join()
        used = Counter[str]()
        for each in counts[1:]:
            used.update(Counter() if each.empty() else each.get())
        left = [_key(which) for which in range(_NUM_KEYS) if (cache.folder / f"{_key(which)}{SUFFIX}").exists()]
        damaged = [key for key in left if cache.find(key) != _plan(int(key, 16))]
        result = Round(
            num_found=used["used"] - used["kept"],
            num_kept=used["kept"],
            num_cleared=used["cleared"],
            num_failed=sum(process.exitcode != 0 for process in running[1:]),
            num_plans_left=len(left),
            num_damaged=len(damaged),
            num_unnamed=sum(1 for path in cache.folder.iterdir() if path.suffix != SUFFIX and path.name != CLAIMS),
        )
        print(number + 1, result, flush=True)
        yield result


def _use(cache: PlanCache, seed: int, counts: multiprocessing.SimpleQueue[Counter[str]]) -> None:
    choose, used = random.Random(seed), Counter[str]()
    for _ in range(_NUM_USES):
        which = choose.randrange(_NUM_KEYS)
        make = functools.partial(_made, used, which)
        found = cache.find_or_make(_key(which), make, waiting=lambda: None)
        if found != _plan(which):
            sys.exit(f"{found.hlo_proto[:20]!r} is not plan {which}")
        used["used"] += 1
        if choose.random() < 0.01:
            cache.clear()
            used["cleared"] += 1
    counts.put(used)


def _made(used: Counter[str], which: int) -> Plan:
    used["kept"] += 1
    return _plan(which)


def _key(which: int) -> str:
    return f"{which:064x}"


def _plan(which: int) -> Plan:
    content = random.Random(which).randbytes(_PLAN_BYTES)
    return Plan(hlo_proto=content, memory_report=b"report", totals=None, compile_seconds=float(which), is_cached=True)


if __name__ == "__main__":
    main()
