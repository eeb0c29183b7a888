"""A technique: a named change to the training configuration that should change the step's memory.

Each file in `techniques/` has those of a family. A technique says which fields it sets; two that set the same field
cannot be combined. One with an argument says how the user spells it, and sets a field to what was given:

    ACCUM = Technique(
        name="accum",
        argument=Argument(spelling="accum<N>", pattern="[0-9]+", example="2", parse=int),
        sets={"num_minibatches": ARGUMENT, "accumulation": "scan"},
        ...
    )

Whether it took effect is not a matter of the configuration: `evidence` looks for it in the report of the compiled
program. See `composition.verdicts`.
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
Evidence = Callable[[Report, ArgumentValue | None, Report | None], Verdict]
ARGUMENT: Final = object()  # stands in `Technique.sets` for the parsed argument
_PLACEHOLDER = re.compile(r"<[^<>]+>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """The argument that some techniques take.

    Attributes:
        spelling: how the whole technique is written, the argument in angle brackets: `accum<N>-loop`, `opt=<NAME>`.
        pattern: regular expression of the argument's text.
        example: an argument that suits the tiny presets, for the conformance tests.
        parse: makes a value of that text; raises `MemprofError` where the text matches but is no sensible value.
    """

    spelling: str
    pattern: str
    example: str
    parse: Callable[[str], ArgumentValue]

    def find(self, text: str) -> str | None:
        """Returns the argument's text in `text`, or None where `text` is not this technique."""
        before, after = _PLACEHOLDER.split(self.spelling)
        match = re.fullmatch(f"{re.escape(before)}({self.pattern}){re.escape(after)}", text)
        return match[1] if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HowTo:
    """How a user does it in code of their own.

    Attributes:
        sentence: what to do.
        code: the line of JAX, Flax (`nn`) or optax that does it, for them to adapt to their names. The technique's
            argument stands in both as its spelling has it: `<N>`.
        argument_code: writes the argument as code.
    """

    sentence: str
    code: str
    argument_code: Callable[[ArgumentValue], str] = str

    def with_argument(self, argument: ArgumentValue) -> HowTo:
        """The same with the argument in the place of its spelling."""

        def fill(text: str) -> str:
            return _PLACEHOLDER.sub(lambda match: self.argument_code(argument), text)

        return HowTo(sentence=fill(self.sentence), code=fill(self.code))


@dataclass(frozen=True, slots=True, kw_only=True)
class Technique:
    """One technique.

    Attributes:
        name: how the user writes it where it takes no argument; unique.
        summary: what it does, in one line.
        about: how it works and what it costs: a sentence, and paragraphs after it.
        how_to: how a user does it in their own code; None for the baseline, for which there is nothing to do.
        reference: where the idea is described.
        family: techniques of one kind are listed together: `precision`, `structure`, ...
        sets: the fields of `TrainConfig` that it decides, with their values. It changes no other.
        join: adds an argument to what its field holds already, which lets the technique be given several times.
        argument: how its argument is spelled; None where it takes none.
        shrinks: categories whose bytes it should lower.
        grows: categories whose bytes it may raise, as its price.
        tolerance: how far, relatively, loss and gradients of a tiny model without dropout may be from the baseline's.
            The default leaves room for another order of summation, no more. None where training differs by intention.
        evidence: says whether it shows in the report of a compiled program, given its argument and the report of the
            reference row, where there is one; None for the baseline, which has nothing to look for.
        restates_baseline: whether all it does is to say what the baseline does anyway.
        needs: labels of techniques that it cannot be used without; any that does the same will do.
        settings: of the model, `field=value`, those that it has nothing to do without.
        shows_with: labels of techniques together with which it changes the program; alone, XLA does the same by itself.
        check_config: raises `MemprofError` where the technique cannot work, given the model's configuration and the
            training configuration with all techniques on.
        check_target: raises `MemprofError` for a target that it cannot be compiled for. It may import jax.
        axis: the axis of the mesh that it divides something over; None: it needs no mesh.
        check_axes: raises `MemprofError` where something does not divide, given the same as `check_config` and the axes
            of the mesh.
    """

    name: str
    summary: str
    reference: str
    family: str
    about: str
    sets: Mapping[str, Any]
    join: Callable[[Any, ArgumentValue], Any] | None = None
    how_to: HowTo | None = None
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
        """How it is written: `bf16`, `accum<N>`."""
        return self.argument.spelling if self.argument else self.name

    @property
    def example(self) -> str:
        """A label that can be parsed: `bf16`, `accum2`."""
        return _PLACEHOLDER.sub(self.argument.example, self.argument.spelling) if self.argument else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTechnique:
    """An applied technique as it is sent to another process: with the name of its technique."""

    name: str
    label: str
    argument: ArgumentValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedTechnique:
    """A technique as the user asked for it.

    Attributes:
        label: what was written: `bf16`, `accum4`.
        argument: the parsed argument; None where the technique takes none.
    """

    technique: Technique
    label: str
    argument: ArgumentValue | None = None

    @property
    def chosen(self) -> ChosenTechnique:
        """The same for another process; `composition.applied_techniques` finds it there."""
        return ChosenTechnique(name=self.technique.name, label=self.label, argument=self.argument)

    @property
    def how_to(self) -> HowTo | None:
        """How a user does it in their own code, with this argument."""
        how_to = self.technique.how_to
        return how_to if how_to is None or self.argument is None else how_to.with_argument(self.argument)

    def apply(self, config: TrainConfig) -> TrainConfig:
        """Returns `config` with the technique on."""
        values: dict[str, Any] = {
            name: self.argument if value is ARGUMENT else value for name, value in self.technique.sets.items()
        }
        join = self.technique.join
        if join is not None and self.argument is not None:
            values = {name: join(getattr(config, name), self.argument) for name in values}
        return dataclasses.replace(config, **values)
