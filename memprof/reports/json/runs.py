"""What `--format json` prints of runs: of the log of one, and of one that was watched (see `report.py`)."""

# Without `from __future__ import annotations`: from texts msgspec makes these types in three times the time.

from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.report import Report
from memprof.reports.json.report import AdviceJson, advice_json
from memprof.reports.json.types import MaybePressure, Size, VerdictJson, about, filled
from memprof.studies.advice.advice import Advice
from memprof.studies.explain.explanation import AskedFor, Explanation
from memprof.studies.explain.records import Moment
from memprof.studies.watch.job import Job
from memprof.studies.watch.moments import Growth, OtherArrays
from memprof.studies.watch.programs import Compiled, JobProgram
from memprof.studies.watch.recompiles import Recompile

_Seconds = Annotated[float, about("Since the script began.")]
_Footprint = Annotated[Size | None, about("Of the largest program; null where XLA has left no plan of it.")]


class ListedBufferJson(Struct, frozen=True, kw_only=True):
    """A buffer of the list that XLA prints, and the same in the program."""

    size_bytes: Annotated[Size, about("As the list rounds it.")]
    array: Annotated[str, about("Type and shape: f32[4096,128].")]
    op: Annotated[str, about("JAX's name of the operation that makes it; empty of an argument.")]
    source: Annotated[str, about("The line that XLA names: model.py:12.")]
    phase: Annotated[Phase, about("By the name of the operation.")]
    category: Annotated[Category | None, about("What it is in the program; null where it was not found in one.")]


class ExplanationJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.explanation/1"):
    """Why a run ended out of memory, by its log: `memprof explain --format json`."""

    message: Annotated[str, about("XLA's own line.")]
    when: Moment
    device: Annotated[str, about("GPU, TPU or CPU; empty where the message does not tell.")]
    asked_bytes: Size | None
    asked_for: AskedFor
    free_bytes: Annotated[Size | None, about("null where the log does not tell, as all that follows.")]
    capacity_bytes: Size | None
    parts: Annotated[dict[str, Size], about("What the program needs, in XLA's words.")]
    program: Annotated[str | None, about("The label of the program that asked for it, where it was given.")]
    verdict: Annotated[VerdictJson | None, about("Of that program; null where it was not given.")]
    listed: tuple[ListedBufferJson, ...]
    sentences: tuple[str, ...]


class JobProgramJson(Struct, frozen=True, kw_only=True):
    """A function of the script, and the programs that were compiled of it."""

    name: str
    place: Annotated[str, about("Where the function is, train.py:31; empty where nobody knows.")]
    kind: Annotated[str, about("train step, gradients, update, eval step or init; empty where it is none of these.")]
    footprint_bytes: _Footprint
    live_peak_bytes: _Footprint
    num_compiles: int
    seconds: Annotated[float, about("What all its compiles took.")]
    recompiles: Annotated[tuple[Recompile, ...], about("Why there were several, the most frequent reason first.")]
    state: Annotated[
        dict[str, int], about("How many parameters of each type it takes; functions with the same share one state.")
    ]


class OfJaxJson(Struct, frozen=True, kw_only=True):
    """The operations that JAX compiled by themselves."""

    footprint_bytes: _Footprint
    num_compiles: int
    seconds: Annotated[float, about("What they took.")]


class MomentJson(Struct, frozen=True, kw_only=True):
    """When most memory was taken: a program, and the arrays beside it."""

    program: str
    seconds: _Seconds
    is_seen: Annotated[
        bool, about("Whether the program began to run then; else it is the largest, which may have run then.")
    ]
    size_bytes: Annotated[Size, about("footprint_bytes + others_bytes.")]
    footprint_bytes: Size
    others_bytes: Size
    others: Annotated[tuple[OtherArrays, ...], about("Arrays that the program does not take, largest first.")]
    live_bytes: Annotated[Size, about("Of all arrays.")]
    in_use_bytes: Annotated[Size | None, about("What the allocator had given out; null where it does not count.")]


class EndingJson(Struct, frozen=True, kw_only=True):
    """How the script ended."""

    error: Annotated[str, about("The traceback that nobody caught; empty where there was none.")]
    is_out_of_memory: bool
    has_seen_enough: Annotated[bool, about("Whether memprof ended it, since all that was asked for was seen.")]


class JobJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.job/1"):
    """What a script has compiled, and what was on the device: `memprof watch --format json`."""

    label: Annotated[str, about("The script, as it was called.")]
    programs: Annotated[tuple[JobProgramJson, ...], about("Those that take most memory first.")]
    of_jax: OfJaxJson
    verdict: Annotated[VerdictJson | None, about("Of the largest program; null where XLA has left no plan of it.")]
    pressure: MaybePressure
    advice: Annotated[
        tuple[AdviceJson, ...], about("For the largest program, with --target; what saves most comes first.")
    ]
    moment: Annotated[MomentJson | None, about("null where no program of the script was seen.")]
    growth: Annotated[
        tuple[Growth, ...], about("Arrays that became more and more while nothing new was compiled, most bytes first.")
    ]
    not_followed: Annotated[
        dict[str, str], about("Functions whose arguments could not be followed, each with the reason.")
    ]
    exit_code: Annotated[int, about("Of the script; 128 + N if signal N ended it.")]
    ending: Annotated[EndingJson | None, about("null where the script was killed.")]
    explanation: Annotated[ExplanationJson | None, about("Of a script that died out of memory; else null.")]


def explanation_json(explanation: Explanation, sentences: tuple[str, ...]) -> ExplanationJson:
    """What `memprof explain` prints."""
    program = explanation.program
    return filled(
        ExplanationJson,
        explanation.log,
        asked_for=explanation.asked_for,
        free_bytes=explanation.free_bytes,
        capacity_bytes=explanation.capacity_bytes,
        program=None if program is None else program.label,
        verdict=None if program is None else program.verdict,
        listed=[
            filled(ListedBufferJson, each.listed, phase=each.phase, category=each.buffer and each.buffer.category)
            for each in explanation.listed
        ],
        sentences=sentences,
    )


def job_json(
    job: Job,
    *,
    exit_code: int,
    explanation: ExplanationJson | None,
    report: Report | None = None,
    advice: Sequence[Advice] = (),
) -> JobJson:
    """What is printed of a watched script.

    Args:
        report: of its largest program, for the verdict and the memory pressure.
        advice: for its largest program.
    """
    return filled(
        JobJson,
        job,
        programs=[_program(each) for each in job.programs],
        of_jax=_of_jax(job.of_jax),
        exit_code=exit_code,
        verdict=None if report is None else report.verdict,
        pressure=None if report is None else report.pressure,
        advice=[advice_json(each) for each in advice],
        explanation=explanation,
    )


def _program(program: JobProgram) -> JobProgramJson:
    largest = program.largest
    return filled(
        JobProgramJson,
        program,
        footprint_bytes=largest.footprint_bytes,
        live_peak_bytes=largest.live_peak_bytes,
        num_compiles=len(program.compiles),
    )


def _of_jax(compiled: tuple[Compiled, ...]) -> OfJaxJson:
    return OfJaxJson(
        footprint_bytes=max((each.footprint_bytes for each in compiled if each.footprint_bytes), default=None),
        num_compiles=len(compiled),
        seconds=sum(each.seen.seconds or 0.0 for each in compiled),
    )
