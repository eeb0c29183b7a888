"""Compile changed steps: trace them one by one in this process, and compile them in parallel in child processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial

from memprof.analysis.hlo.decoded import FreshCapture
from memprof.analysis.records.capture import Target
from memprof.errors import MemprofError
from memprof.sources.jax.compile import lower_step, planned
from memprof.sources.jax.processes.child_process import Children
from memprof.sources.jax.user_traceback import first_line
from memprof.sources.jax.xla.plan import PlannedStep
from memprof.sources.jax.xla.plan_cache import checked
from memprof.sources.jax.xla.portable_program import CompileSettings
from memprof.studies.changes.change import Change

Progress = Callable[[str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A change and its compile.

    Attributes:
        fresh: the capture; None if the change could not be compiled.
        refusal: the reason why it could not be compiled.
    """

    change: Change
    fresh: FreshCapture | None
    refusal: str = ""


def compile_changes(
    changes: Iterable[Change], target: Target, *, num_jobs: int, settings: CompileSettings, progress: Progress
) -> Iterator[Outcome]:
    """Compile changes, each as soon as it is found, and yield each outcome as soon as it is known.

    Only the program of that outcome is decoded.

    Args:
        changes: may be a generator, so that compiles start during the search for changes.
        progress: called from several threads with the rule of a change and its stage; the last stage is `done` or
            `failed`.
    """
    children, executor = Children(), ThreadPoolExecutor(max_workers=num_jobs)
    futures: dict[Future[PlannedStep], tuple[Change, Callable[[], PlannedStep]]] = {}
    try:
        for change in changes:
            stage = partial(progress, change.rule)
            try:
                with change.around(), warnings.catch_warnings():
                    # Equinox donates all arguments or none. Don't show JAX's warning that the batch cannot be donated.
                    warnings.filterwarnings("ignore", "Some donated buffers were not usable")
                    lowered = lower_step(change.spec, target, stage)
                plan = planned(lowered, progress=stage, settings=settings, children=children)
                futures[executor.submit(plan)] = change, plan
            except Exception as error:  # raised by the user's code with ours in it
                yield _failed(change, error, progress)
            for future in [each for each in futures if each.done()]:
                yield _outcome(future, *futures.pop(future), progress)
        for future in as_completed([*futures]):
            yield _outcome(future, *futures.pop(future), progress)
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        children.end()
        executor.shutdown(wait=True)


def _outcome(
    future: Future[PlannedStep], change: Change, plan: Callable[[], PlannedStep], progress: Progress
) -> Outcome:
    try:
        fresh = checked(future.result(), plan)
    except Exception as error:  # XLA's errors have no common type
        return _failed(change, error, progress)
    progress(change.rule, "done")
    return Outcome(change=change, fresh=fresh)


def _failed(change: Change, error: Exception, progress: Progress) -> Outcome:
    progress(change.rule, "failed")
    reason = str(error) if isinstance(error, MemprofError) else f"{type(error).__name__}: {first_line(error)}"
    return Outcome(change=change, fresh=None, refusal=reason)
