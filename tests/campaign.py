"""A campaign of damaged files with a seed: captures, dumps, logs, baselines, plans, memory snapshots and profiles.

    python tests/campaign.py --seed 1 --seconds 600 [--output RESULT.json]

Each file is damaged and read. Three ends are right: the same result as before the damage, another consistent result, or
one sentence (`MemprofError`). Any other end is a defect, as is a file that takes more than ten seconds of processor
time. The folder `campaign-failures` keeps the file. The exit code is 1 if there was a defect. CI runs it every week
with a new seed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pickle
import random
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mutants import damage, forged, mutants, odd_json, odd_program
from oom_logs import POSTED
from property.test_damage_laws import step
from unit.analysis.test_engines import engine_capture
from unit.analysis.test_traced import trace_capture
from unit.sources.test_memory_profiles import made as made_profile
from unit.sources.test_memory_snapshot import made_snapshot
from unit.sources.test_text_dumps import ASSIGNMENT, LIVE_RANGES, PROGRAM

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.report import Report
from memprof.errors import InternalError, MemprofError
from memprof.files import IfTaken
from memprof.reports.format import format_named
from memprof.reports.json.memory_profile import memory_profile_json
from memprof.reports.options import RenderOptions
from memprof.sources.capture_file import read_capture, write_capture
from memprof.sources.dumps.dumps import programs_in
from memprof.sources.dumps.importing import import_program, sizes_of
from memprof.sources.dumps.memory_profiles import memory_profile
from memprof.sources.jax.xla.plan import Plan
from memprof.sources.jax.xla.plan_cache import PlanCache
from memprof.sources.snapshot.capture import import_snapshot
from memprof.studies.check.baseline import baseline_of, read_baseline, write_baseline
from memprof.studies.explain.log import read_log

_MAX_SECONDS = 10.0
_FORMATS = ("terminal", "json", "html", "csv", "markdown")
_DUMP = "module_0001.jit_step.sm_9.0a_gpu_after_optimizations.hlo.pb"
_SEPARATOR = "\n=====\n"
_FRAGMENTS = (
    "\n", "\t", "\r", "\x00", "\x1b[2J", "9" * 400, "1.2.3 bytes", "[111", 'op_name="', "Size: ", "Buffer 1:",
    "RESOURCE_EXHAUSTED: ", "Out of memory while trying to allocate ", "Attempting to reserve ", "\u202e", "\u2028",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of file: `damaged` makes the contents of one in turn, `read` reads it and names its end."""

    name: str
    damaged: Iterator[bytes]
    read: Callable[[bytes], str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    ends: Counter[str] = Counter()
    num_defects = 0
    end = time.monotonic() + asked.seconds
    with tempfile.TemporaryDirectory() as folder:
        kinds = _kinds(Path(folder), random.Random(asked.seed))
        while time.monotonic() < end:
            for kind in kinds:
                content = next(kind.damaged)
                defect = _defect(kind, content, ends)
                if defect:
                    num_defects += 1
                    _keep(kind, content, defect, num_defects)
    result = {
        "seed": asked.seed,
        "seconds": asked.seconds,
        "files": ends.total(),
        "defects": num_defects,
        "ends": dict(ends),
    }
    print(json.dumps(result, indent=1))
    if asked.output:
        asked.output.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if num_defects else 0


def _defect(kind: Kind, content: bytes, ends: Counter[str]) -> str:
    """Read one file, count its end, and return the description of a defect, or an empty text."""
    started = _processor_seconds()
    try:
        ending = kind.read(content)
    except InternalError:
        return traceback.format_exc()
    except MemprofError as error:
        ending = "one sentence"
        if not str(error).isprintable():
            return f"not one clean line: {error!r}"[:300]
    except Exception:
        return traceback.format_exc()
    ends[f"{kind.name}: {ending}"] += 1
    seconds = _processor_seconds() - started
    return f"it took {seconds:.1f} s" if seconds > _MAX_SECONDS else ""


def _processor_seconds() -> float:
    """Of this process and of those that it has waited for: XLA reads texts in one."""
    return sum(os.times()[:4])


def _keep(kind: Kind, content: bytes, defect: str, number: int) -> None:
    folder = Path("campaign-failures")
    folder.mkdir(exist_ok=True)
    (folder / f"{kind.name}-{number}").write_bytes(content)
    (folder / f"{kind.name}-{number}.txt").write_text(defect)
    print(f"defect {number} ({kind.name}): {defect.strip().splitlines()[-1]}", flush=True)


def _kinds(folder: Path, rng: random.Random) -> list[Kind]:
    capture = step().capture()
    write_capture(capture, folder / "step.memprof")
    whole = (folder / "step.memprof").read_bytes()
    write_baseline(baseline_of(analyze(capture)), folder / "base.json")
    baseline = (folder / "base.json").read_bytes()
    plan = Plan(hlo_proto=capture.hlo_proto, memory_report=b"", totals=None, compile_seconds=1.0)
    cache = PlanCache(folder=folder / "plans", limit_bytes=1 << 24)
    cache.keep("1" * 64, plan)
    (entry,) = cache.folder.glob("*")
    return [
        Kind("capture", _mutants(whole, rng), _reader_of_captures(folder, rng)),
        Kind("dump", _damaged_programs(capture.hlo_proto, rng), _reader_of_dumps(folder)),
        Kind("text dump", _damaged_texts(rng), _reader_of_texts(folder)),
        Kind("log", _logs(rng), _read_log),
        Kind("baseline", _damaged(baseline, rng), _reader_of_baselines(folder, baseline)),
        Kind("capture of an engine", _forged(engine_capture(), folder, rng), _reader_of_captures(folder, rng)),
        Kind("capture of a trace", _forged(trace_capture(), folder, rng), _reader_of_captures(folder, rng)),
        Kind("memory snapshot", _snapshots(rng), _reader_of_snapshots(folder)),
        Kind("memory profile", _profiles(rng), _reader_of_profiles(folder)),
        Kind("plan", _damaged(entry.read_bytes(), rng), _reader_of_plans(cache, entry, plan)),
    ]


def _mutants(whole: bytes, rng: random.Random) -> Iterator[bytes]:
    while True:
        for mutant in mutants(whole, rng, 90):
            yield mutant.content


def _forged(capture: Capture, folder: Path, rng: random.Random) -> Iterator[bytes]:
    whole = write_capture(capture, folder / "other.memprof", if_taken=IfTaken.REPLACE).read_bytes()
    while True:
        yield forged(whole, rng)


def _snapshots(rng: random.Random) -> Iterator[bytes]:
    whole = made_snapshot()
    while True:
        yield damage(pickle.dumps(whole), rng)
        yield pickle.dumps(json.loads(odd_json(json.dumps(whole).encode(), rng)))


def _profiles(rng: random.Random) -> Iterator[bytes]:
    whole = made_profile().SerializeToString()
    while True:
        yield damage(gzip.compress(whole), rng)
        yield gzip.compress(damage(whole, rng))


def _damaged(content: bytes, rng: random.Random) -> Iterator[bytes]:
    while True:
        yield damage(content, rng)


def _damaged_programs(program: bytes, rng: random.Random) -> Iterator[bytes]:
    while True:
        yield rng.choice([damage, odd_program])(program, rng)


def _logs(rng: random.Random) -> Iterator[bytes]:
    lines = [line for log in POSTED.values() for line in log.text.splitlines(keepends=True)]
    while True:
        pieces = [rng.choice(rng.choice([lines, _FRAGMENTS])) for _ in range(rng.randrange(40))]
        repeated = rng.choice(_FRAGMENTS) * rng.choice([0, 10, 10_000])
        text = "".join(pieces) + repeated + "".join(pieces[:5])
        yield damage(text.encode(), rng) if text and rng.random() < 0.5 else text.encode()


def _reader_of_captures(folder: Path, rng: random.Random) -> Callable[[bytes], str]:
    path = folder / "damaged.memprof"

    def read(content: bytes) -> str:
        path.write_bytes(content)
        return _consistent(analyze(read_capture(path)), rng.choice(_FORMATS))

    return read


def _reader_of_snapshots(folder: Path) -> Callable[[bytes], str]:
    path = folder / "snapshot.pickle"

    def read(content: bytes) -> str:
        path.write_bytes(content)
        capture = import_snapshot(path, target=None)
        return _consistent(
            analyze(read_capture(write_capture(capture, folder / "snapshot.memprof", if_taken=IfTaken.REPLACE))), "json"
        )

    return read


def _reader_of_profiles(folder: Path) -> Callable[[bytes], str]:
    path = folder / "memory.prof"

    def read(content: bytes) -> str:
        path.write_bytes(content)
        profile = memory_profile(path)
        return "no profile" if profile is None else "a profile" if memory_profile_json(profile, None) else ""

    return read


def _reader_of_dumps(folder: Path) -> Callable[[bytes], str]:
    dump = folder / "dump"
    dump.mkdir()

    def read(content: bytes) -> str:
        (dump / _DUMP).write_bytes(content)
        return _import(dump)

    return read


def _damaged_texts(rng: random.Random) -> Iterator[bytes]:
    while True:
        texts = [PROGRAM, ASSIGNMENT, LIVE_RANGES]
        number = rng.randrange(3)
        texts[number] = damage(texts[number].encode(), rng).decode(errors="replace")
        yield _SEPARATOR.join(texts).encode()


def _reader_of_texts(folder: Path) -> Callable[[bytes], str]:
    dump = folder / "texts"
    dump.mkdir()

    def read(content: bytes) -> str:
        for ending, text in zip(
            ("", "-buffer-assignment", "-live-range"), content.split(_SEPARATOR.encode()), strict=True
        ):
            (dump / f"module_0001.jit_step.cpu_after_optimizations{ending}.txt").write_bytes(text)
        return _import(dump)

    return read


def _import(dump: Path) -> str:
    (found,) = programs_in([dump])
    sizes_of(found)
    return _consistent(analyze(import_program(found, roles={}, target=None).capture), "json")


def _consistent(report: Report, format_name: str) -> str:
    assert sum(report.categories.values()) == report.footprint_bytes
    text = format_named(format_name).render_report(report, RenderOptions(width=100))
    assert "\x1b" not in str(text)
    return "a consistent report"


def _read_log(content: bytes) -> str:
    read_log(content.decode(errors="replace"))
    return "read"


def _reader_of_baselines(folder: Path, whole: bytes) -> Callable[[bytes], str]:
    path = folder / "damaged.json"

    def read(content: bytes) -> str:
        path.write_bytes(content)
        read_baseline(path)
        return "the same" if content == whole else "another baseline"

    return read


def _reader_of_plans(cache: PlanCache, entry: Path, plan: Plan) -> Callable[[bytes], str]:
    def read(content: bytes) -> str:
        entry.write_bytes(content)
        found = cache.find("1" * 64)
        assert found is None or found == replace(plan, is_cached=True)
        return "the same plan" if found else "no plan"

    return read


if __name__ == "__main__":
    raise SystemExit(main())
