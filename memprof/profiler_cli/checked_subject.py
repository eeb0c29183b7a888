"""What a command is to compile, with the mistakes in what was asked for found before the work starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memprof.studies.subject import Subject


def checked_subject(
    workload: str,
    techniques: Sequence[str],
    *,
    preset: str | None,
    overrides: Sequence[str],
    roles: Sequence[str],
    arguments: Sequence[str],
    target: str | None,
    runs: bool = False,
) -> Subject:
    """The subject that the options name.

    Args:
        runs: whether its steps are to run, which takes a target that is here.

    Raises:
        MemprofError: a name or a value is wrong, a technique does not apply, or the target is not here.
    """
    from memprof.capture.targets.resolve import check_can_run, deviceless_target
    from memprof.studies.subject import find_subject

    if target is not None:
        deviceless_target(target)
    if runs:
        check_can_run(target)
    subject = find_subject(workload, preset=preset, overrides=overrides, roles=roles, arguments=arguments)
    subject.check(techniques)
    return subject
