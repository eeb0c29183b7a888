"""Check a capture against a user's limits: the library behind `memprof check` and the pytest plugin."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memprof.amounts import parse_bytes
from memprof.analysis.comparison import Verdict
from memprof.analysis.hlo.decoded import Decoded
from memprof.analysis.memory.card import judge_reserved
from memprof.analysis.memory.verdict import judge
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture, Target, Topology
from memprof.analysis.records.pool import PoolSettings
from memprof.errors import MemprofError
from memprof.files import IfTaken, check_writable
from memprof.sources.capture_file import read_capture, write_capture
from memprof.sources.jax.targets.resolve import AskedTarget, read_mesh, resolve, resolve_or_local
from memprof.sources.pool_settings import pool_settings
from memprof.studies.check.baseline import Baseline, baseline_of, read_baseline, write_baseline
from memprof.studies.check.check import CheckResult, Maximum, Threshold, check, parse_threshold
from memprof.workloads.composition import parse_techniques, verdicts
from memprof.workloads.torch.evidence import verdicts as torch_verdicts

_DEFAULT_THRESHOLD = "footprint:+0%"
_CAPTURE_SUFFIX = ".memprof"
_MESH = re.compile(r"(?P<axes>.*=.*) \(\d+ devices(?: on (?P<hosts>\d+) hosts)?\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A user's limits.

    Attributes:
        maxima: largest allowed footprints.
        must_fit: a device whose pool must hold the step; None allows any footprint.
        pool: the settings of JAX's allocator to judge by; None means those of the capture.
        baseline: the baseline from which it may grow by `thresholds`; None for no baseline.
        require_effect: whether every technique must show in the program.
    """

    maxima: tuple[Maximum, ...] = ()
    must_fit: Target | None = None
    pool: PoolSettings | None = None
    baseline: Baseline | None = None
    thresholds: tuple[Threshold, ...] = ()
    require_effect: bool = False


def limits_of(
    *,
    maximum: str | None = None,
    fits: str | None = None,
    against: Path | None = None,
    fail_on: Sequence[str] = (),
    require_effect: bool = False,
    pool: PoolSettings | None = None,
) -> Limits:
    """Parse limits from the user's texts, and find all mistakes before the work starts.

    Args:
        maximum: an amount of memory.
        fits: a GPU whose memory pool must hold the step.
        against: a baseline, or a capture in place of one.
        fail_on: thresholds such as `footprint:+2%`; if empty, the footprint must not grow at all.
        pool: the settings of JAX's allocator to judge by; None means those of the capture.

    Raises:
        MemprofError: a text cannot be parsed, or there is nothing to check.
    """
    maxima = []
    if maximum is not None:
        maxima.append(Maximum(size_bytes=parse_bytes(maximum), reason=f"--max {maximum}"))
    must_fit = None if fits is None else _with_memory(fits)
    if fail_on and against is None:
        raise MemprofError("--fail-on limits the growth against a baseline: give one with --against")
    if not maxima and must_fit is None and against is None and not require_effect:
        raise MemprofError("there is nothing to check: give --max, --fits, --against or --require-effect")
    return Limits(
        maxima=tuple(maxima),
        must_fit=must_fit,
        pool=pool,
        thresholds=tuple(map(parse_threshold, fail_on or [_DEFAULT_THRESHOLD])) if against else (),
        baseline=load_baseline(against) if against else None,
        require_effect=require_effect,
    )


def check_capture(capture: Capture, limits: Limits, decoded: Decoded | None = None) -> CheckResult:
    """Check a capture.

    Args:
        decoded: see `analyze`.

    Raises:
        MemprofError: techniques must show in the program, but there are none, or none that this memprof version knows;
            or the step must fit a device that it was not compiled for.
    """
    report = analyze(capture, decoded, pool=limits.pool)
    if limits.require_effect and not report.techniques:
        raise MemprofError(
            f"{report.label} has no techniques that could show in its program: leave out --require-effect, or name"
            " techniques"
        )
    effects: tuple[Verdict, ...] = ()
    if limits.require_effect and report.program.traced is not None:
        effects = torch_verdicts(report, report.techniques, None)
    elif limits.require_effect:
        effects = verdicts(report, parse_techniques(*report.techniques), None)
    must_fit = None
    if limits.must_fit is not None:
        # The memory that PyTorch keeps does not depend on the device.
        if report.allocator is None and report.target.name != limits.must_fit.name:
            raise MemprofError(
                f"{report.label} was compiled for {report.target.name}, and its program for another device may differ:"
                f" compile it for {limits.must_fit.name} to check whether it fits there"
            )
        device = replace(limits.must_fit, topology=report.target.topology)
        settings = limits.pool or pool_settings(device, report.pool)
        if report.allocator is None:
            must_fit = judge(report.pieces, device, settings, pressed=report.pressed_pieces)
        else:
            must_fit = judge_reserved(report.footprint_bytes, device)
    return check(
        report,
        maxima=limits.maxima,
        must_fit=must_fit,
        baseline=limits.baseline,
        thresholds=limits.thresholds,
        effects=effects,
    )


def load_baseline(path: Path) -> Baseline:
    """Read the baseline in a file, or compute it from a capture.

    Raises:
        MemprofError: there is no such file, or it is neither a baseline nor a capture.
    """
    return (
        baseline_of(analyze(read_capture(path), with_order=False))
        if path.suffix == _CAPTURE_SUFFIX
        else read_baseline(path)
    )


def target_of(baseline: Baseline) -> AskedTarget:
    """Return the target of a baseline; None if this memprof version does not know its name."""
    mesh = _MESH.fullmatch(baseline.origin["mesh"])
    topology = Topology() if mesh is None else read_mesh(mesh["axes"], int(mesh["hosts"] or 1))
    try:
        return replace(resolve_or_local(baseline.origin.get("target", ""), topology), reason="that of the baseline")
    except MemprofError:
        return None


def check_replaceable(path: Path, *, force: bool) -> None:
    """Check before the work starts that a baseline can be written to a file.

    Args:
        force: whether it may replace a file that is not a baseline.

    Raises:
        MemprofError: the file cannot be written, or exists and was not written by memprof.
    """
    check_writable(path, overwrite=True)
    if force or not os.path.exists(path):
        return
    try:
        load_baseline(path)
    except MemprofError as error:
        raise MemprofError(
            f"{path} is not replaced, because memprof did not write it; choose another file, or replace it with --force"
        ) from error


def update_baseline(capture: Capture, path: Path, decoded: Decoded | None = None) -> None:
    """Write the baseline again: the sums, or the whole capture if the path names a capture.

    Args:
        decoded: see `analyze`.

    Raises:
        MemprofError: the file cannot be written.
    """
    if path.suffix == _CAPTURE_SUFFIX:
        write_capture(capture, path, if_taken=IfTaken.REPLACE)
    else:
        write_baseline(baseline_of(analyze(capture, decoded, with_order=False)), path)


def _with_memory(name: str) -> Target:
    """Return the GPU with that name.

    Raises:
        MemprofError: there is no such target, or its memory is unknown.
    """
    target = resolve(name)
    if target.memory_bytes is None:
        raise MemprofError(f"{name} has no fixed amount of memory: give a GPU of the catalogue, or use --max")
    return target
