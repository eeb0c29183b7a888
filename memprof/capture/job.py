"""What the command and its child process say to each other: one job, then messages, each a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

CAPTURE_FILE = "capture.memprof"
TRACE_FOLDER = "trace"
RECOMPUTED_FILE = "recomputed.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One compile, and what comes after it.

    Attributes:
        builder: `module:function` that returns the `StepSpec`; `arguments` are its keyword arguments, JSON values.
        target: what the user asked for; None for the best there is.
        num_steps: how many steps to run and time once it is compiled; 0: none.
        traces: whether to trace these steps, into `TRACE_FOLDER` of the work folder.
        variants: other keyword arguments for the builder. Where there are any, nothing is compiled: it is counted how
            many operations each variant's step computes again, into `RECOMPUTED_FILE`.
    """

    builder: str
    arguments: Mapping[str, Any]
    target: str | None
    num_steps: int = 0
    traces: bool = False
    variants: Sequence[Mapping[str, Any]] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of the child.

    Attributes:
        kind: `stage` (a stage begins), `done`, `error` (a `MemprofError`) or `workload_error` (the step failed).
        text: the stage's name or the error's sentence; `details` is the traceback of a step that failed.
        error_type: the class of a `MemprofError`.
    """

    kind: str
    text: str
    details: str = ""
    error_type: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Message:
        return cls(**json.loads(text))
