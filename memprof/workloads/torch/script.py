"""A PyTorch training script that names no step: it is traced unchanged, in its own process.

    capture = trace_in_child(TorchScript(reference=parse("train.py")), target)

The script's output goes to stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from memprof.analysis.records.capture import Capture, Target
from memprof.errors import MemprofError, WorkloadError
from memprof.sources.capture_file import read_capture, write_capture
from memprof.sources.jax.processes.process_tree import die_with
from memprof.sources.jax.processes.task import Message, converted, decoded, encoded, plain, raise_error
from memprof.sources.jax.targets.resolve import option_of, resolve
from memprof.sources.jax.user_traceback import first_line, user_traceback
from memprof.workloads.overrides import split_override
from memprof.workloads.user.reference import Reference
from memprof.workloads.user.script_source import prepare

_STDERR = 2
_CAPTURE, _ERROR = "script.memprof", "error.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchScript:
    """A script and its inputs.

    Attributes:
        reference: the file or the module.
        overrides: `name=value` texts: its constants at top level, or else its own options.
        arguments: arguments for its `sys.argv`.
    """

    reference: Reference
    overrides: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


def trace_in_child(script: TorchScript, target: Target) -> Capture:
    """Trace a script in its own process.

    Raises:
        MemprofError: PyTorch is not installed, or the script cannot be traced, or a signal ended it.
        WorkloadError: the script failed, or exited.
    """
    where = script.reference
    asked = json.dumps([plain(script), option_of(target)])
    with tempfile.TemporaryDirectory(prefix="memprof-script-") as folder:
        this = os.getpid()
        command = [sys.executable, "-P", "-m", __name__, folder, asked]
        child = subprocess.Popen(command, stdout=_STDERR, preexec_fn=lambda: die_with(this))
        try:
            code = child.wait()
        finally:
            child.kill()
        if (Path(folder) / _ERROR).exists():
            raise_error(decoded((Path(folder) / _ERROR).read_bytes(), Message))
        if not (Path(folder) / _CAPTURE).exists():
            raise MemprofError(f"{where} exited with code {code} before its step was traced")
        return replace(read_capture(Path(folder) / _CAPTURE), target=target)


def _trace(folder: Path, script: TorchScript, target: str) -> None:
    """Run the traced script in the child. The process ends itself, because the script stays suspended in it."""
    where, error = script.reference, None
    try:
        _write(folder, script, resolve(target))
    except WorkloadError as failed:
        error = Message(kind="workload_error", text=str(failed), details=failed.details)
    except MemprofError as failed:
        error = Message(kind="error", text=str(failed))
    except SystemExit as ended:
        sentence = f"{where} has ended itself with {ended.code!r} before its second training step was done"
        error = Message(kind="workload_error", text=sentence)
    except Exception as failed:
        sentence = f"{where} failed while it was traced: {type(failed).__name__}: {first_line(failed)}"
        error = Message(kind="workload_error", text=sentence, details=user_traceback(failed))
    if error is not None:
        (folder / _ERROR).write_bytes(encoded(error))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def _write(folder: Path, asked: TorchScript, target: Target) -> None:
    try:
        from memprof.sources.torch.trace_script import trace_script
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MemprofError("PyTorch is not installed: pip install 'jax-memprof[torch]'") from error
    where, overrides = asked.reference, [split_override(each) for each in asked.overrides]
    script = prepare(where, asked.arguments, overrides)
    with script.noted():
        capture = trace_script(script.run, target=target, name=where.label, config=script.config)
    write_capture(capture, folder / _CAPTURE)


if __name__ == "__main__":
    _asked, _target = json.loads(sys.argv[2])
    _trace(Path(sys.argv[1]), converted(_asked, TorchScript), _target)
