"""The protocol between the command and its child processes: one task, then messages, each a line of JSON.

Each line decodes to the record that it encodes. A task builds its step from a recipe, a record of a higher layer, so
the line includes the name of the recipe's type.
"""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import msgspec

from memprof.analysis.records.capture import Target
from memprof.errors import InternalError, MemprofError, WorkloadError
from memprof.sources.jax.targets.resolve import AskedTarget, LocalDevice
from memprof.sources.jax.xla.portable_program import TO_THE_PLAN, CompileSettings, PlanTask
from memprof.untrusted import convert

if TYPE_CHECKING:
    from memprof.sources.jax.tracing.step import StepSpec

TRACE_FOLDER = "trace"
RECOMPUTED_FILE = "recomputed.json"
RESULT_FILE = "result.json"
PLAN_TASK_FILE = "plan_task.json"
STDERR_FILE = "stderr"
DUMP_FOLDER = "dump"
PLAN_FILE = "plan.msgpack"
EXPORTED_FILE = "exported.json"

_Record = TypeVar("_Record")


class Recipe(Protocol):
    """A record that can build a step: plain values and paths, with all choices made and checked.

    Attributes:
        imports: modules needed to build the step; empty if the recipe runs the user's code, which allows no earlier
            imports (see `fork_server.py`).
    """

    imports: ClassVar[tuple[str, ...]]

    def build(self, target: AskedTarget) -> StepSpec:
        """Build the step in the child process; this may run the user's code.

        Args:
            target: the requested target; if it is a mesh, the arguments of the step lie on it.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One compile, and an optional run or export of the step.

    Attributes:
        label: name that distinguishes the task from others.
        target: the target of the compile.
        num_steps: number of steps to run and time after the compile.
        traces: whether to trace these steps into `TRACE_FOLDER` of the work folder.
        lowers_only: whether to stop after lowering, with the inputs of the compile in the work folder.
        exports: file name in the work folder for an ONNX model of the step, which is then not compiled; empty for no
            export.
        verifies: whether to compare the ONNX model's results with JAX's.
        settings: settings of the compile; its time limit includes the steps.
    """

    recipe: Recipe
    target: AskedTarget
    label: str = ""
    num_steps: int = 0
    traces: bool = False
    lowers_only: bool = False
    exports: str = ""
    verifies: bool = False
    settings: CompileSettings = TO_THE_PLAN


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingTask:
    """Steps whose recomputed operations are counted, by tracing alone, into `RECOMPUTED_FILE`."""

    recipes: tuple[Recipe, ...]
    target: AskedTarget
    settings: CompileSettings = TO_THE_PLAN


AnyTask = Task | CountingTask | PlanTask
_COMPILING = "memprof.sources.jax.compile"


def common_imports(task: AnyTask) -> tuple[str, ...]:
    """Return the modules that the task shares with other tasks; empty if it runs the user's code."""
    if isinstance(task, PlanTask):
        return (_COMPILING,)
    of_recipes = [recipe.imports for recipe in ((task.recipe,) if isinstance(task, Task) else task.recipes)]
    return (_COMPILING, *dict.fromkeys(chain(*of_recipes))) if all(of_recipes) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message.

    The worker sends `stage` when a stage begins, and then the outcome: `done`, `error` (a `MemprofError`) or
    `workload_error` (the step failed). If the user's code has closed the pipe, the outcome is in `RESULT_FILE`. The
    supervisor sends `ended` when the worker has ended.

    Attributes:
        kind: see above.
        text: the stage's name, the error's sentence, or the exit code (negative: the signal that killed the worker).
        details: the traceback of a failed step, or the end of the worker's output.
        error_type: the class of a `MemprofError`.
    """

    kind: str
    text: str
    details: str = ""
    error_type: str = ""


def raise_error(message: Message) -> None:
    """Raise the error that a message tells, if any."""
    if message.kind == "workload_error":
        raise WorkloadError(message.text, details=message.details)
    if message.kind == "error":
        raise (InternalError if message.error_type == "InternalError" else MemprofError)(message.text)


def encoded(record: Message) -> bytes:
    """Encode a message as an ASCII line: paths and sentences may contain characters that UTF-8 cannot encode."""
    return _line(msgspec.to_builtins(record))


def decoded(line: bytes | str, kind: type[_Record]) -> _Record:
    """Decode the message in a line."""
    message: _Record = converted(json.loads(line), kind)
    return message


def encoded_task(task: AnyTask) -> bytes:
    """Encode a task as a line."""
    recipes = (task.recipe,) if isinstance(task, Task) else getattr(task, "recipes", ())
    fields = {name: getattr(task, name) for name in task.__dataclass_fields__ if name not in ("recipe", "recipes")}
    return _line(
        {
            "task": type(task).__name__,
            "fields": plain(fields),
            "recipes": [(f"{type(each).__module__}:{type(each).__qualname__}", plain(each)) for each in recipes],
        }
    )


def decoded_task(line: bytes | str) -> AnyTask:
    """Decode the task in a line, and import the modules of its recipes."""
    found = json.loads(line)
    fields, recipes = found["fields"], tuple(converted(recipe, _type(name)) for name, recipe in found["recipes"])
    target = fields["target"]
    is_whole = target is not None and "platform" in target
    fields["target"] = converted(target, Target if is_whole else LocalDevice | None)
    fields["settings"] = converted(fields["settings"], CompileSettings)
    if found["task"] == PlanTask.__name__:
        return PlanTask(**fields)
    return Task(recipe=recipes[0], **fields) if found["task"] == "Task" else CountingTask(recipes=recipes, **fields)


def plain(record: object) -> Any:
    """Convert a record to plain JSON values."""
    return msgspec.to_builtins(record, enc_hook=os.fspath)


def converted(value: Any, kind: Any) -> Any:
    """Convert plain JSON values back to a record."""
    return convert(value, kind, dec_hook=lambda kind, text: kind(text))


def _type(name: str) -> Any:
    module, _, name = name.partition(":")
    return getattr(importlib.import_module(module), name)


def _line(value: Any) -> bytes:
    return json.dumps(value).encode("ascii") + b"\n"


def no_process(error: OSError) -> Message:
    """Return the error message for a process that cannot be started."""
    return Message(
        kind="error",
        text=f"no process for compiling can be started ({error.strerror or error}): the machine, or a limit on "
        "processes or memory, allows no more",
    )
