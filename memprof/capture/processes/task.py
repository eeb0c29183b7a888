"""What the command and its child processes say to each other: one task, then messages, each a line of JSON.

Each line is decoded to the record that it was encoded from. What a task builds its step from, a recipe, is a record of
a room above this one: its type goes with it by name.
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
from memprof.capture.xla.portable_program import TO_THE_PLAN, CompileSettings, PlanTask
from memprof.untrusted import convert

if TYPE_CHECKING:
    from memprof.capture.tracing.step import StepSpec

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
    """A record that knows how to build a step: plain values and paths, and all choices made and checked.

    Attributes:
        imports: modules that building it takes; none where it runs the user's code, for which nothing may be imported
            in advance (see `fork_server.py`).
    """

    imports: ClassVar[tuple[str, ...]]

    def build(self, target: Target | None) -> StepSpec:
        """Build it, in the child process: this may run the user's code.

        Args:
            target: what was asked for; where it is a mesh, the arguments of the step lie on it.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One compile, and what comes after it.

    Attributes:
        label: what tells it from other tasks.
        target: what to compile for; None for the best there is.
        num_steps: how many steps to run and time once it is compiled; 0: none.
        traces: whether to trace these steps, into `TRACE_FOLDER` of the work folder.
        lowers_only: whether to leave in the work folder what it takes to compile the step elsewhere, and to end.
        exports: name of a file of the work folder to write the step to as an ONNX model, and to end; empty: none.
        verifies: whether the model's results are compared with JAX's.
        settings: the time limit counts for the steps, too.
    """

    recipe: Recipe
    target: Target | None
    label: str = ""
    num_steps: int = 0
    traces: bool = False
    lowers_only: bool = False
    exports: str = ""
    verifies: bool = False
    settings: CompileSettings = TO_THE_PLAN


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingTask:
    """Steps of which it is counted, by tracing alone, how many operations each computes again: `RECOMPUTED_FILE`."""

    recipes: tuple[Recipe, ...]
    target: Target | None
    settings: CompileSettings = TO_THE_PLAN


AnyTask = Task | CountingTask | PlanTask
_COMPILING = "memprof.capture.compile"


def common_imports(task: AnyTask) -> tuple[str, ...]:
    """The modules that it has in common with other tasks; none where it runs the user's code."""
    if isinstance(task, PlanTask):
        return (_COMPILING,)
    of_recipes = [recipe.imports for recipe in ((task.recipe,) if isinstance(task, Task) else task.recipes)]
    return (_COMPILING, *dict.fromkeys(chain(*of_recipes))) if all(of_recipes) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message.

    The worker says of its work: `stage` (a stage begins), then how it came out: `done`, `error` (a `MemprofError`) or
    `workload_error` (the step failed). It leaves this last one in `RESULT_FILE` where the user's code has closed the
    pipe. The supervisor says `ended`, when the worker has.

    Attributes:
        kind: see above.
        text: the stage's name, the error's sentence, or the exit code (negative: the signal that killed the worker).
        details: the traceback of a step that failed, or the end of what the worker printed.
        error_type: the class of a `MemprofError`.
    """

    kind: str
    text: str
    details: str = ""
    error_type: str = ""


def encoded(record: Message) -> bytes:
    """A message as a line, in ASCII: paths and sentences may hold what UTF-8 cannot."""
    return _line(msgspec.to_builtins(record))


def decoded(line: bytes | str, kind: type[_Record]) -> _Record:
    """The message that a line holds."""
    message: _Record = _converted(json.loads(line), kind)
    return message


def encoded_task(task: AnyTask) -> bytes:
    """A task as a line."""
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
    """The task that a line holds. Imports what its recipes are made of."""
    found = json.loads(line)
    fields, recipes = found["fields"], tuple(_converted(recipe, _type(name)) for name, recipe in found["recipes"])
    fields["target"] = _converted(fields["target"], Target | None)
    fields["settings"] = _converted(fields["settings"], CompileSettings)
    if found["task"] == PlanTask.__name__:
        return PlanTask(**fields)
    return Task(recipe=recipes[0], **fields) if found["task"] == "Task" else CountingTask(recipes=recipes, **fields)


def plain(record: object) -> Any:
    """A record as plain JSON values."""
    return msgspec.to_builtins(record, enc_hook=os.fspath)


def _converted(value: Any, kind: Any) -> Any:
    return convert(value, kind, dec_hook=lambda kind, text: kind(text))


def _type(name: str) -> Any:
    module, _, name = name.partition(":")
    return getattr(importlib.import_module(module), name)


def _line(value: Any) -> bytes:
    return json.dumps(value).encode("ascii") + b"\n"


def no_process(error: OSError) -> Message:
    """That no process can be started for the work."""
    return Message(
        kind="error",
        text=f"no process to compile in can be started ({error.strerror or error}): this machine, or a limit on the"
        " number of processes or on memory, allows no more",
    )
