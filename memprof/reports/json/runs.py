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

_Seconds = Annotated[float, about("Seconds since the start of the script.")]
_Footprint = Annotated[Size | None, about("Of the largest program; null if XLA left no plan of it.")]


class ListedBufferJson(Struct, frozen=True, kw_only=True):
    """A buffer of XLA's list, and the same buffer in the program."""

    size_bytes: Annotated[Size, about("Size, rounded as in the list.")]
    array: Annotated[str, about("Type and shape: f32[4096,128].")]
    op: Annotated[str, about("JAX's name of the operation that makes it; empty for an argument.")]
    source: Annotated[str, about("The line that XLA names: model.py:12.")]
    phase: Annotated[Phase, about("Phase, by the name of the operation.")]
    category: Annotated[
        Category | None, about("Category in the program; null if the buffer was not found in a program.")
    ]


class ExplanationJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.explanation/1"):
    """The reason why a run ran out of memory, by its log: `memprof explain --format json`."""

    message: Annotated[str, about("XLA's own line.")]
    when: Moment
    device: Annotated[str, about("GPU, TPU or CPU; empty if the message does not show it.")]
    asked_bytes: Size | None
    asked_for: AskedFor
    free_bytes: Annotated[Size | None, about("Free memory; null if the log does not show it.")]
    capacity_bytes: Size | None
    parts: Annotated[dict[str, Size], about("Bytes that the program needs, by XLA's names.")]
    program: Annotated[str | None, about("Label of the program with the failed allocation; null if it is unknown.")]
    verdict: Annotated[VerdictJson | None, about("The verdict on that program; null if it is unknown.")]
    listed: tuple[ListedBufferJson, ...]
    sentences: tuple[str, ...]


class JobProgramJson(Struct, frozen=True, kw_only=True):
    """A function of the script, and the programs that were compiled from it."""

    name: str
    place: Annotated[str, about("Location of the function, train.py:31; empty if it is unknown.")]
    kind: Annotated[str, about("train step, gradients, update, eval step or init; empty if it is none of these.")]
    footprint_bytes: _Footprint
    live_peak_bytes: _Footprint
    num_compiles: int
    seconds: Annotated[float, about("Time of all its compiles.")]
    recompiles: Annotated[tuple[Recompile, ...], about("Reasons for several compiles, most frequent first.")]
    state: Annotated[
        dict[str, int], about("Number of its parameters by type; functions with equal parameters share their state.")
    ]


class OfJaxJson(Struct, frozen=True, kw_only=True):
    """The operations that JAX compiled by themselves."""

    footprint_bytes: _Footprint
    num_compiles: int
    seconds: Annotated[float, about("Time of their compiles.")]


class MomentJson(Struct, frozen=True, kw_only=True):
    """The moment of the largest memory use: a program, and the arrays beside it."""

    program: str
    seconds: _Seconds
    is_seen: Annotated[
        bool,
        about(
            "Whether the program was seen to start then; otherwise it is the largest program, which may have run then."
        ),
    ]
    size_bytes: Annotated[Size, about("footprint_bytes + others_bytes.")]
    footprint_bytes: Size
    others_bytes: Size
    others: Annotated[tuple[OtherArrays, ...], about("Arrays that are not arguments of the program, largest first.")]
    live_bytes: Annotated[Size, about("Bytes of all arrays.")]
    in_use_bytes: Annotated[Size | None, about("Bytes that the allocator had in use; null if it does not count them.")]


class EndingJson(Struct, frozen=True, kw_only=True):
    """How the script ended."""

    error: Annotated[str, about("The uncaught traceback; empty if there was none.")]
    is_out_of_memory: bool
    has_seen_enough: Annotated[bool, about("Whether memprof ended it, because all requested programs were seen.")]


class JobJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.job/1"):
    """The programs that a script compiled, and the arrays on the device: `memprof watch --format json`."""

    label: Annotated[str, about("The script, as it was called.")]
    programs: Annotated[tuple[JobProgramJson, ...], about("Functions of the script, most memory first.")]
    of_jax: OfJaxJson
    verdict: Annotated[VerdictJson | None, about("Of the largest program; null if XLA left no plan of it.")]
    pressure: MaybePressure
    advice: Annotated[
        tuple[AdviceJson, ...], about("Advice on the largest program, with --target; largest saving first.")
    ]
    moment: Annotated[MomentJson | None, about("The largest moment; null if no program of the script was seen.")]
    growth: Annotated[
        tuple[Growth, ...],
        about("Arrays whose number kept growing while no new program was compiled, most bytes first."),
    ]
    not_followed: Annotated[dict[str, str], about("Functions whose arguments could not be followed, with the reason.")]
    exit_code: Annotated[int, about("Exit code of the script; 128 + N if signal N ended it.")]
    ending: Annotated[EndingJson | None, about("The end of the script; null if it was killed.")]
    explanation: Annotated[
        ExplanationJson | None, about("The explanation if the script ran out of memory; otherwise null.")
    ]


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
