"""A whole job: the programs that a script compiled, the arrays on the device, and the script's end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from memprof.analysis.records.watched import Ending, LiveArrays, SeenCall
from memprof.studies.watch.moments import Growth, LargestMoment, growth_of, largest_moment, with_holders
from memprof.studies.watch.programs import Compiled, JobProgram, programs_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A watched script.

    Attributes:
        label: the script, as it was called.
        programs: the functions of the script, most memory first.
        of_jax: the operations that JAX compiled by themselves.
        moment: the largest moment; None if no program of the script was seen.
        not_followed: the reason why the arguments of a function could not be followed, by the function's name. Their
            roles come from the program alone.
        ending: how the script ended; None if it was killed.
    """

    label: str
    programs: tuple[JobProgram, ...]
    of_jax: tuple[Compiled, ...]
    moment: LargestMoment | None
    growth: tuple[Growth, ...]
    not_followed: Mapping[str, str]
    ending: Ending | None


def job_of(
    label: str,
    calls: Iterable[SeenCall],
    compiled: Sequence[Compiled],
    samples: Sequence[LiveArrays],
    ending: Ending | None,
) -> Job:
    """Return the job for the recorded data.

    Args:
        samples: the arrays on the device at several moments, in order.
    """
    at_end = [ending.live] if ending is not None and ending.live is not None else []
    programs, live = programs_of(compiled), with_holders([*samples, *at_end])
    return Job(
        label=label,
        programs=programs,
        of_jax=tuple(each for each in compiled if each.call is None),
        moment=largest_moment(programs, live),
        growth=growth_of(programs, live[: len(samples)]),
        not_followed={call.function: call.not_followed for call in calls if call.not_followed},
        ending=ending,
    )
