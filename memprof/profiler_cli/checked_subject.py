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
) -> Subject:
    """The subject that the options name.

    Raises:
        MemprofError: a name or a value is wrong, or a technique does not apply.
    """
    from memprof.studies.subject import find_subject

    subject = find_subject(workload, preset=preset, overrides=overrides, roles=roles, arguments=arguments)
    subject.check(techniques)
    return subject
