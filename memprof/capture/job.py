"""What the command and its child processes say to each other: one job, then messages, each a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from memprof.analysis.capture import Target
from memprof.analysis.foreign import convert

_Record = TypeVar("_Record")

CAPTURE_FILE = "capture.memprof"
TRACE_FOLDER = "trace"
RECOMPUTED_FILE = "recomputed.json"
RESULT_FILE = "result.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One compile, and what comes after it.

    Attributes:
        builder: `module:function` that returns the `StepSpec`; `arguments` are its keyword arguments, JSON values.
        target: what to compile for; None for the best there is.
        num_steps: how many steps to run and time once it is compiled; 0: none.
        complete: whether to compile to the end where no step runs, and not to the plan alone.
        traces: whether to trace these steps, into `TRACE_FOLDER` of the work folder.
        variants: other keyword arguments for the builder. Where there are any, nothing is compiled: it is counted how
            many operations each variant's step computes again, into `RECOMPUTED_FILE`.
    """

    builder: str
    arguments: Mapping[str, Any]
    target: Target | None
    num_steps: int = 0
    traces: bool = False
    complete: bool = False
    variants: Sequence[Mapping[str, Any]] = ()


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


def encoded(record: Job | Message) -> bytes:
    """A record as a line of JSON, in ASCII: paths and messages may hold what UTF-8 cannot."""
    return json.dumps(msgspec.to_builtins(record)).encode("ascii") + b"\n"


def decoded(line: bytes | str, kind: type[_Record]) -> _Record:
    """The record that a line holds."""
    return convert(json.loads(line), kind)


def no_process(error: OSError) -> Message:
    """That no process can be started for the work."""
    return Message(
        kind="error",
        text=f"no process to compile in can be started ({error.strerror or error}): this machine, or a limit on the"
        " number of processes or on memory, allows no more",
    )
