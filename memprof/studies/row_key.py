"""What decides what a compile gives, as one text: two compiles with the same key give the same program.

    key = row_key(subject.task("bf16+remat", target=resolve("h100-80gb")))
    is_of_row(capture, key, subject)      # then it need not be compiled again

In doubt a key differs: it holds all that is installed, all variables of the environment that could matter, and
memprof's own files. What a user's step was made of is in the capture itself (see `capture/tracing/inputs.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sys
from functools import cache
from pathlib import Path

from memprof.analysis.records.capture import Capture
from memprof.capture.processes.task import Task, plain
from memprof.capture.targets.resolve import option_of
from memprof.capture.tracing.inputs import are_unchanged, digest_of_memprof
from memprof.studies.subject import Subject
from memprof.workloads.build import BuiltInStep

_FOR_COMPILERS = re.compile(r"(XLA|JAX|LIBTPU|TPU|TF|CUDA|NVIDIA|NV|LD|PYTHON|OMP|MKL)_|CUDA|PYTHON")
# What differs between two shells and says nothing to a program that builds a step.
_OF_THE_SHELL = re.compile(
    r"_|PWD|OLDPWD|SHLVL|COLUMNS|LINES|PS\d|LS_COLORS|DISPLAY|WINDOWID|TMPDIR|STY|HISTFILE|PROMPT_COMMAND"
    r"|(TERM|COLORTERM|SSH|XDG|TMUX|VTE|DBUS|GPG|PYTEST)(_.*)?|NO_COLOR|FORCE_COLOR"
)
# Where there is one of these, the device that is taken when none is named is not known before JAX has looked.
_DEVICES = ("nvidia[0-9]*", "nvidiactl", "accel*", "vfio/[0-9]*", "kfd", "dxg")


def row_key(task: Task) -> str:
    """The key of a compile; empty where what it gives is not known beforehand."""
    target, is_built_in = task.target, isinstance(task.recipe, BuiltInStep)
    if _has_device() if target is None else not target.platform:
        return ""
    facts = {
        "recipe": [type(task.recipe).__name__, plain(task.recipe)],
        "complete": task.settings.complete,
        "target": None if target is None else [option_of(target), target.compiler_config, plain(target.topology)],
        "surroundings": _surroundings(),
        "environment": _environment(_FOR_COMPILERS if is_built_in else None),
        "folder": "" if is_built_in else os.getcwd(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def is_of_row(capture: Capture, key: str, subject: Subject) -> bool:
    """Whether a capture is what a compile with that key would give."""
    if not key or capture.row != key or capture.measured is not None:
        return False
    return subject.is_built_in or are_unchanged(capture.inputs)


@cache
def _surroundings() -> str:
    """The versions of Python, of everything that is installed, and of the compiler's tools."""
    installed = sorted(
        f"{each.name} {each.stat().st_mtime_ns}"
        for folder in sys.path
        if folder and Path(folder).is_dir()
        for each in Path(folder).glob("*.dist-info")
    )
    ptxas = shutil.which("ptxas")
    tools = [] if ptxas is None else [ptxas, Path(ptxas).stat().st_mtime_ns]
    return repr([sys.version, platform.machine(), platform.node(), installed, tools, digest_of_memprof()])


def _environment(wanted: re.Pattern[str] | None) -> dict[str, str]:
    if wanted is not None:
        return {name: value for name, value in os.environ.items() if wanted.match(name)}
    return {name: value for name, value in os.environ.items() if not _OF_THE_SHELL.fullmatch(name)}


def _has_device() -> bool:
    return any(any(Path("/dev").glob(pattern)) for pattern in _DEVICES)
