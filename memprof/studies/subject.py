"""The subject of a profile: a built-in workload with its choices, or the user's code. Neither is imported here."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from memprof.analysis.records.capture import Topology
from memprof.errors import MemprofError
from memprof.sources.jax.processes.task import Task, plain
from memprof.sources.jax.roles.leaf import parse_roles
from memprof.sources.jax.targets.resolve import AskedTarget, mesh_option, option_of
from memprof.sources.jax.xla.portable_program import TO_THE_PLAN, CompileSettings
from memprof.workloads import registry
from memprof.workloads.build import BuiltInStep, plan
from memprof.workloads.composition import parse_techniques
from memprof.workloads.mesh_axes import on_mesh
from memprof.workloads.overrides import split_override
from memprof.workloads.user.build import UserStep, unchangeable
from memprof.workloads.user.reference import is_reference, names_step, parse

# Default rows: each technique is compared with the row that lacks only it, then all are combined.
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
# Default rows for a user's loss, whose model cannot be changed.
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
    """A workload or the user's code, under any techniques, as the user wrote it.

    Attributes:
        name: name of a built-in workload, or a reference to the user's code.
        label: its name in messages.
        preset: preset of a built-in workload.
        overrides: `field=value` texts.
        roles: roles of arguments of the user's code, by path.
        arguments: `sys.argv` arguments for the user's code.
    """

    name: str
    label: str
    is_built_in: bool
    preset: str | None = None
    overrides: tuple[str, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    def with_override(self, name: str, value: object) -> Subject:
        """Return the same subject with one field set."""
        return replace(self, overrides=(*(text for text in self.overrides if _field(text) != name), f"{name}={value}"))

    def sets(self, name: str) -> bool:
        """Whether a field is among the overrides."""
        return any(_field(text) == name for text in self.overrides)

    def plan(self, techniques: str = "", *, axes: Mapping[str, int] = MappingProxyType({})) -> BuiltInStep | UserStep:
        """Return the recipe from which a child process builds the step, with all choices made and checked.

        Args:
            techniques: labels joined by `+`.
            axes: axes of the mesh that it is built for; empty for one device.

        Raises:
            MemprofError: a name or a value is wrong, or a technique does not apply.
        """
        if is_model_file(self.name):
            raise MemprofError(f"{self.name} is an ONNX model, which XLA does not compile: give --engine tensorrt")
        if self.is_built_in:
            return plan(
                workload=self.name, preset=self.preset, overrides=self.overrides, techniques=[techniques], axes=axes
            ).recipe
        return UserStep(
            reference=parse(self.name),
            overrides=tuple(map(split_override, self.overrides)),
            techniques=tuple(applied.chosen for applied in parse_techniques(techniques)),
            roles=dict(self.roles),
            arguments=self.arguments,
        )

    def task(
        self,
        techniques: str,
        *,
        target: AskedTarget,
        label: str = "",
        num_steps: int = 0,
        settings: CompileSettings = TO_THE_PLAN,
    ) -> Task:
        """Return the compile task with techniques (see `plan`), for a target, with `num_steps` steps."""
        target = on_mesh(target, parse_techniques(techniques))
        return Task(
            recipe=self.plan(techniques, axes={} if target is None else target.topology.axes),
            target=target,
            label=label,
            num_steps=num_steps,
            settings=settings,
        )

    def teaching_rows(self) -> tuple[str, ...]:
        """Return the rows to compare if the user names none: the default rows that apply.

        Raises:
            MemprofError: the subject itself is wrong.
        """
        if not self.is_built_in:
            return _TEACHING_ROWS_OF_A_LOSS
        self.plan()
        return tuple(filter(self.applies, registry.workload(self.name).teaching_rows or TEACHING_ROWS))

    def check_changeable(self, rows: Sequence[str]) -> None:
        """Reject rows of techniques for a finished step, if this is known without importing the user's code.

        Args:
            rows: techniques of each row, joined by `+`; if empty, the teaching rows.

        Raises:
            MemprofError: the reference names a `StepSpec`, and a row is not a compiler option.
        """
        if self.is_built_in or not names_step(reference := parse(self.name)):
            return
        chosen = [each for row in rows for each in parse_techniques(row)]
        if not chosen or any(set(each.technique.sets) != {"compiler_options"} for each in chosen):
            raise MemprofError(unchangeable(reference))

    def applies(self, techniques: str) -> bool:
        """Whether techniques apply, if this is known without importing the user's code."""
        try:
            self.plan(techniques)
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
    """Return the subject that the user named.

    Args:
        text: a built-in workload, `PATH.py:NAME` or `package.module:NAME`.
        preset: preset of a built-in workload.
        overrides: `field=value` texts.
        roles: `path=role` texts, for the user's own code.
        arguments: `sys.argv` arguments for the user's own code.

    Raises:
        MemprofError: there is no such file, or the subject does not take one of the choices.
    """
    if is_model_file(text):
        return _model_file(text, overrides, given={"--preset": preset, "--role": roles, "arguments": arguments})
    if not is_reference(text):
        if roles:
            raise MemprofError(f"--role is for your own step; the roles of {text}'s arguments are known")
        if arguments:
            raise MemprofError(f"{text} takes no arguments, but got {' '.join(arguments)}; choices are made with --set")
        return Subject(name=text, label=text, is_built_in=True, preset=preset, overrides=tuple(overrides))
    if preset is not None:
        raise MemprofError(f"--preset is for built-in workloads; parameters of {text} are set with --set")
    return Subject(
        name=text,
        label=parse(text).label,
        is_built_in=False,
        overrides=tuple(overrides),
        roles=parse_roles(roles),
        arguments=tuple(arguments),
    )


def program_task(task: Task, number: int, label: str) -> Task:
    """Return the compile task of one program of a task's server, by the program's number."""
    assert isinstance(task.recipe, UserStep), "a built-in workload is no server"
    return replace(task, recipe=replace(task.recipe, program=number), label=label)


def is_model_file(text: str) -> bool:
    """Whether a text names an ONNX model."""
    return text.endswith(".onnx")


def _model_file(text: str, overrides: Sequence[str], *, given: Mapping[str, object]) -> Subject:
    if not os.path.isfile(text):
        raise MemprofError(f"there is no file {text}; `memprof export` writes ONNX models")
    for option, value in given.items():
        if value:
            raise MemprofError(f"{option} is for a JAX step, but {text} is a model: leave it out")
    return Subject(name=text, label=Path(text).stem, is_built_in=False, overrides=tuple(overrides))


def run_command(
    subject: Subject,
    target: AskedTarget,
    techniques: str,
    *,
    engine: str | None = None,
    framework: str | None = None,
) -> str:
    """Return the `memprof run` command with all the choices of a subject, quoted for a shell."""
    return _command("run", subject, target, techniques, engine=engine, framework=framework)


def advise_command(subject: Subject, target: AskedTarget, techniques: str) -> str:
    """Return the `memprof advise` command with all the choices of a subject, quoted for a shell."""
    return _command("advise", subject, target, techniques)


def _command(
    verb: str,
    subject: Subject,
    target: AskedTarget,
    techniques: str,
    *,
    engine: str | None = None,
    framework: str | None = None,
) -> str:
    words = ["memprof", verb, subject.name]
    aim = option_of(target) if target is not None else None
    mesh = mesh_option(target.topology) if target is not None else None
    topology = target.topology if target is not None else Topology()
    chips = "x".join(map(str, topology.chips))  # this implies the number of hosts
    hosts = str(topology.num_hosts) if topology.num_hosts > 1 and not chips else None
    slices = str(topology.num_slices) if topology.num_slices > 1 else None
    of_mesh = (("--mesh", mesh), ("--hosts", hosts), ("--topology", chips), ("--slices", slices))
    for option, text in (
        *(("--framework", framework), ("--preset", subject.preset), ("--engine", engine), ("--target", aim)),
        *(*of_mesh, ("-t", techniques)),
    ):
        words += [option, text] if text else []
    for override in subject.overrides:
        words += ["--set", override]
    for path, role in subject.roles.items():
        words += ["--role", f"{path}={role}"]
    return shlex.join([*words, *(["--", *subject.arguments] if subject.arguments else [])])


def _field(override: str) -> str:
    return override.partition("=")[0].strip()


def request_digest(task: Task) -> str:
    """Return a digest of the request: the step as the user named it, its techniques and the target.

    It identifies the folder of a repeated command. It does not show whether the step is unchanged: the cache of plans
    decides that, by the lowered program.
    """
    target = task.target
    facts = {
        "recipe": [type(task.recipe).__name__, plain(task.recipe)],
        "complete": task.settings.complete,
        "target": None if target is None else [option_of(target), plain(target.topology)],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
