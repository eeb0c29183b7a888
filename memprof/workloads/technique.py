"""A technique: a named change to the training configuration that should change the step's memory.

Each file in `techniques/` contains the techniques of a family. A technique lists the fields that it sets; two that set
the same field cannot be combined. A technique with an argument defines its spelling, and sets a field to the argument:

    ACCUM = Technique(
        name="accum",
        argument=Argument(spelling="accum<N>", pattern="[0-9]+", example="2", parse=int),
        sets={"num_minibatches": ARGUMENT, "accumulation": "scan"},
        ...
    )

The configuration does not show whether the technique took effect: `evidence` looks for the effect in the report of the
compiled program. See `composition.verdicts`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.capture import Target
from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import Report
from memprof.workloads.train_config import TrainConfig

ArgumentValue = int | float | str
ARGUMENT: Final = object()  # stands in `Technique.sets` for the parsed argument
_PLACEHOLDER = re.compile(r"<[^<>]+>")


@dataclass(frozen=True, slots=True)
class Observation:
    """The reports in which the effect of a technique should show.

    Attributes:
        report: the report of the program with the technique.
        argument: the technique's argument; None if it takes none.
        reference: the report of the row to compare with, if there is one.
    """

    report: Report
    argument: ArgumentValue | None
    reference: Report | None


Evidence = Callable[[Observation], Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """The argument of a technique.

    Attributes:
        spelling: spelling of the whole technique, with the argument in angle brackets: `accum<N>-loop`, `opt=<NAME>`.
        pattern: regular expression of the argument's text.
        example: an argument that suits the tiny presets, for the conformance tests.
        parse: converts the text to a value; raises `MemprofError` if the text matches but is not a sensible value.
    """

    spelling: str
    pattern: str
    example: str
    parse: Callable[[str], ArgumentValue]

    def find(self, text: str) -> str | None:
        """Return the argument's text in `text`, or None if `text` is another technique."""
        before, after = _PLACEHOLDER.split(self.spelling)
        match = re.fullmatch(f"{re.escape(before)}({self.pattern}){re.escape(after)}", text)
        return match[1] if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Technique:
    """One technique.

    Attributes:
        name: its spelling if it takes no argument; unique.
        summary: what it does, in one line.
        about: how it works and what it costs: a sentence, then paragraphs.
        instruction: how users apply it in their own code; empty for the baseline, which needs no change.
        code: code that runs in the user's step, as in `intents.Means`; empty if it depends on the step. In both texts
            the spelling's placeholder stands for the technique's argument: `<N>`.
        argument_code: writes the argument as code.
        reference: where the idea is described.
        family: group of similar techniques that are listed together: the name of its file, which the registry fills in.
        sets: the fields of `TrainConfig` that it sets, with their values. It changes no other field.
        join: adds an argument to the current value of its field, so that the technique can be given several times.
        argument: its argument; None if it takes none.
        shrinks: categories whose bytes it should lower.
        grows: categories whose bytes it may raise, as its price.
        tolerance: largest relative difference of loss and gradients from the baseline's, for a tiny model without
            dropout. The default only allows for another order of summation. None if training differs by intention.
        evidence: decides whether it shows in the report of a compiled program; None for the baseline, which has no
            effect to look for.
        restates_baseline: whether it only states explicitly what the baseline does anyway.
        needs: labels of techniques that it requires; others with the same effect also work.
        settings: model settings, `field=value`, without which it has no effect.
        shows_with: labels of techniques together with which it changes the program; alone, XLA does the same by itself.
        check_config: raises `MemprofError` if the technique cannot work, given the model's configuration and the
            training configuration with all techniques on.
        check_target: raises `MemprofError` for a target that it cannot be compiled for. It may import jax.
        axis: the axis of the mesh that it divides something over; None if it needs no mesh.
        check_axes: raises `MemprofError` if a size does not divide, given the arguments of `check_config` and the axes
            of the mesh.
    """

    name: str
    summary: str
    reference: str
    about: str
    sets: Mapping[str, Any]
    family: str = ""
    join: Callable[[Any, ArgumentValue], Any] | None = None
    instruction: str = ""
    code: str = ""
    argument_code: Callable[[ArgumentValue], str] = str
    argument: Argument | None = None
    shrinks: tuple[Category, ...] = ()
    grows: tuple[Category, ...] = ()
    tolerance: float | None = 1e-5
    evidence: Evidence | None = None
    restates_baseline: bool = False
    needs: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    shows_with: tuple[str, ...] = ()
    check_config: Callable[[Any, TrainConfig], None] | None = None
    check_target: Callable[[Target], None] | None = None
    axis: str | None = None
    check_axes: Callable[[Any, TrainConfig, Mapping[str, int]], None] | None = None

    @property
    def usage(self) -> str:
        """Its spelling: `bf16`, `accum<N>`."""
        return self.argument.spelling if self.argument else self.name

    @property
    def example(self) -> str:
        """A label that can be parsed: `bf16`, `accum2`."""
        return _PLACEHOLDER.sub(self.argument.example, self.argument.spelling) if self.argument else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTechnique:
    """An applied technique in the form that is sent to another process: its technique is given by name."""

    name: str
    label: str
    argument: ArgumentValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedTechnique:
    """A technique with the user's argument.

    Attributes:
        label: the user's text: `bf16`, `accum4`.
        argument: the parsed argument; None if the technique takes none.
    """

    technique: Technique
    label: str
    argument: ArgumentValue | None = None

    @property
    def chosen(self) -> ChosenTechnique:
        """The same for another process; `composition.applied_techniques` restores it there."""
        return ChosenTechnique(name=self.technique.name, label=self.label, argument=self.argument)

    @property
    def instruction(self) -> str:
        """How users apply it in their own code, with this argument."""
        return self._filled(self.technique.instruction)

    @property
    def code(self) -> str:
        """Code that applies it, with this argument."""
        return self._filled(self.technique.code)

    def _filled(self, text: str) -> str:
        argument = self.argument
        if argument is None:
            return text
        return _PLACEHOLDER.sub(lambda match: self.technique.argument_code(argument), text)

    def apply(self, config: TrainConfig) -> TrainConfig:
        """Return `config` with the technique on."""
        values: dict[str, Any] = {
            name: self.argument if value is ARGUMENT else value for name, value in self.technique.sets.items()
        }
        join = self.technique.join
        if join is not None and self.argument is not None:
            values = {name: join(getattr(config, name), self.argument) for name in values}
        return dataclasses.replace(config, **values)
