"""Building of an engine in a separate process."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from memprof.analysis.records.capture import Target
from memprof.analysis.records.engine import Engine
from memprof.errors import MemprofError, WorkloadError
from memprof.sources.tensorrt.build_log import Boundary, read_engine, tensor
from memprof.sources.tensorrt.request import LOG_FILE, REQUEST_FILE, RESULT_FILE, BuildRequest, BuildResult, NamedArray

INSTALL = (
    "pip install 'jax-memprof[tensorrt]' (TensorRT for RTX is proprietary software of NVIDIA: by installing it, you"
    " accept its license)"
)
# The support matrix of TensorRT for RTX 1.7.
CAPABILITIES = ((7, 5), (8, 6), (8, 9), (12, 0), (12, 1))
_LAST_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """An engine, and the weights of its model."""

    engine: Engine
    weights: tuple[NamedArray, ...]
    seconds: float


def check_installed() -> None:
    """Raise `MemprofError` if TensorRT for RTX or onnx is not installed."""
    if importlib.util.find_spec("tensorrt_rtx") is None or importlib.util.find_spec("onnx") is None:
        raise MemprofError(f"TensorRT for RTX is not installed: {INSTALL}")


def capability_of(target: Target) -> tuple[int, int]:
    """Return the compute capability to build for.

    Raises:
        MemprofError: TensorRT for RTX does not support the target.
    """
    found = target.cuda_capability
    if found is None:
        raise MemprofError(f"TensorRT builds for NVIDIA GPUs, but {target.name} is not one: choose one with --target")
    if found not in CAPABILITIES:
        supported = ", ".join(f"{major}.{minor}" for major, minor in CAPABILITIES)
        raise MemprofError(
            f"TensorRT for RTX does not support {target.name}, whose compute capability is {found[0]}.{found[1]}: it"
            f" builds for {supported}, such as rtx-4090 or l4"
        )
    return found


def build_engine(request: BuildRequest, folder: Path, *, timeout_seconds: float | None = None) -> BuiltEngine:
    """Build an engine.

    Args:
        folder: an empty folder for the files of the build.

    Raises:
        MemprofError: TensorRT rejects the model.
        WorkloadError: the builder ended without an answer, or took too long.
    """
    (folder / REQUEST_FILE).write_bytes(msgspec.json.encode(request))
    _run([sys.executable, "-P", "-m", "memprof.sources.tensorrt.builder", str(folder)], folder, timeout_seconds)
    result = msgspec.json.decode((folder / RESULT_FILE).read_bytes(), type=BuildResult)
    if result.error:
        raise MemprofError(result.error)
    boundary = Boundary(
        inputs=tuple(tensor(each.name, each.shape, each.dtype) for each in result.inputs),
        outputs=tuple(tensor(each.name, each.shape, each.dtype) for each in result.outputs),
    )
    engine = read_engine(result.messages, boundary, version=result.version, static_messages=result.static_messages)
    return BuiltEngine(engine=engine, weights=tuple(result.weights), seconds=result.seconds)


def _run(command: list[str], folder: Path, timeout_seconds: float | None) -> None:
    log = folder / LOG_FILE
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, "TMPDIR": str(folder)}
        )
    try:
        exit_code = process.wait(timeout_seconds)
    except subprocess.TimeoutExpired as error:
        raise WorkloadError(
            f"the engine was not built after {timeout_seconds:g} s; allow more time with --timeout"
        ) from error
    finally:
        process.kill()
        process.wait()
    if exit_code == 0 and (folder / RESULT_FILE).exists():
        return
    how = f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"
    hint = " (out of host memory, perhaps)" if exit_code == -signal.SIGKILL else ""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise WorkloadError(f"TensorRT's builder {how}{hint}", details="\n".join(lines[-_LAST_LINES:]))
