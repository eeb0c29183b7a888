"""What is profiled: a built-in workload with its choices, or the user's own code. Found without importing either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memprof.errors import MemprofError
from memprof.workloads.build import plan
from memprof.workloads.composition import parse_techniques
from memprof.workloads.user.reference import is_reference, parse

# Rows that teach: each technique against the one row that lacks it, then what they come to together.
TEACHING_ROWS = (
    "baseline",
    "donate",
    "bf16",
    "bf16+accum4",
    "bf16+remat",
    "bf16+scan",
    "opt=adafactor",
    "opt=adam8bit",
    "bf16+donate+scan+remat+accum4",
)
# The same for a loss, around which the model itself cannot be changed.
_TEACHING_ROWS_OF_A_LOSS = (
    "baseline",
    "donate",
    "bf16",
    "bf16+accum4",
    "bf16+remat-dots",
    "opt=adafactor",
    "opt=adam8bit",
    "bf16+donate+remat-dots+accum4",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is profiled, under whatever techniques.

    Attributes:
        label: what messages call it.
        builder: `module:function` that returns its `StepSpec` in the child process.
        arguments: the builder's keyword arguments, JSON values, but for the techniques.
    """

    label: str
    builder: str
    arguments: Mapping[str, Any]

    @property
    def is_built_in(self) -> bool:
        return "workload" in self.arguments

    def builder_arguments(self, techniques: Sequence[str]) -> dict[str, Any]:
        """The builder's keyword arguments for a set of techniques."""
        return {**self.arguments, "techniques": list(techniques)}

    def with_override(self, field: str, value: object) -> Subject:
        """The same with one field set."""
        others = [text for text in self.arguments["overrides"] if text.partition("=")[0].strip() != field]
        return replace(self, arguments={**self.arguments, "overrides": [*others, f"{field}={value}"]})

    def check(self, techniques: Sequence[str]) -> None:
        """Find mistakes in names and values before the work starts.

        Raises:
            MemprofError: a name or a value is wrong, or a technique does not apply.
        """
        if self.is_built_in:
            plan(**self.builder_arguments(techniques))
        else:
            parse_techniques(*techniques)

    def teaching_rows(self) -> tuple[str, ...]:
        """The rows for somebody who names none: those of the default ones that apply.

        Raises:
            MemprofError: the subject itself is wrong.
        """
        if not self.is_built_in:
            return _TEACHING_ROWS_OF_A_LOSS
        self.check([])
        return tuple(row for row in TEACHING_ROWS if self._applies(row))

    def _applies(self, row: str) -> bool:
        try:
            self.check([row])
        except MemprofError:
            return False
        return True


def find_subject(
    text: str,
    *,
    preset: str | None = None,
    overrides: Sequence[str] = (),
    roles: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> Subject:
    """What the user named.

    Args:
        text: a built-in workload, `PATH.py:NAME` or `package.module:NAME`.
        preset: of a built-in workload.
        overrides: texts `field=value`.
        roles: texts `path=role`, for the user's own code.
        arguments: for the `sys.argv` of the user's own code.

    Raises:
        MemprofError: there is no such file, or something is given that the subject does not take.
    """
    if not is_reference(text):
        if roles:
            raise MemprofError(f"--role is for a step of your own; what the arguments of {text} are for is known")
        if arguments:
            raise MemprofError(f"{text} takes no arguments, but got {' '.join(arguments)}; choices are made with --set")
        return Subject(
            label=text,
            builder="memprof.workloads.build:build_step",
            arguments={"workload": text, "preset": preset, "overrides": list(overrides)},
        )
    if preset is not None:
        raise MemprofError(f"--preset is for built-in workloads; parameters of {text} are set with --set")
    return Subject(
        label=parse(text).label,
        builder="memprof.workloads.user.build:build_user_step",
        arguments={
            "reference": text,
            "overrides": list(overrides),
            "roles": dict(map(_role, roles)),
            "arguments": list(arguments),
        },
    )


def _role(text: str) -> tuple[str, str]:
    path, equals, role = text.rpartition("=")
    if not (path and equals and role):
        raise MemprofError(f"'{text}' gives no role: write PATH=ROLE, for example state.ema=other_state")
    return path, role
