"""Hints for common errors in the trace or the compile of a step."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

from memprof.errors import Interrupted, MemprofError, WorkloadError
from memprof.sources.jax.user_traceback import first_line, message_of, user_line, user_traceback

# Parts of JAX's messages when a program runs on, or data is put onto, an absent device.
_OF_ABSENT_DEVICES = (
    "Executable' object has no attribute 'local_devices'",
    "not available with compile-only client",
    "only supported for addressable",
    "owned by a non-PjRt-compatible client",
    "Got jit memory kind: None, arg memory kind",
)


def hint(error: BaseException) -> str:
    """Return a sentence that says what to try, or an empty string if the error speaks for itself."""
    message, kind = message_of(error), type(error).__name__
    if isinstance(error, EOFError):
        return "input() cannot be answered here: give the value with --set, or as an argument after --"
    if isinstance(error, SystemExit):
        return 'the code exited: move code that must not run here under if __name__ == "__main__":'
    if isinstance(error, ModuleNotFoundError):
        return f"install it where memprof runs: {sys.executable} -m pip install ..."
    if kind == "InvalidRngError":
        stream = re.search(r"\"([^\"]+)\"", message)
        name = stream.group(1) if stream else "params"
        return f"the model draws random numbers from '{name}': pass rngs={{'{name}': key}} to its apply"
    if any(words in message for words in _OF_ABSENT_DEVICES):
        return (
            f"{user_line(error) or 'the code'} tries to create an array on an absent GPU: give shapes "
            "(jax.eval_shape, jax.ShapeDtypeStruct) instead of arrays, or create arrays before the mesh is set"
        )
    if "cudnn" in message.lower() and "dot_product_attention" in _frames(error):
        return "implementation='cudnn' needs cuDNN during tracing: install nvidia-cudnn-cu13 (or -cu12)"
    if "Couldn't find output tile sizes" in message:  # XLA's own kernels without autotuning (jaxlib 0.10.2)
        option = "xla_gpu_enable_triton_gemm"
        return (
            f"XLA cannot generate a kernel for this matrix product: let cuBLAS compute it with -t xla:{option}=false, "
            f'or with compiler_options={{"{option}": False}}'
        )
    if "is not found in mesh" in message:
        return "the mesh lacks that axis: add it to --mesh, or where the mesh is created"
    if kind == "UnexpectedTracerError":
        return "the function stores a traced value that outlives it; return it instead"
    if kind == "ConcretizationTypeError" or kind.startswith("Tracer"):
        return "an argument that determines shapes or branches must be static: add it to static_argnums"
    if isinstance(error, TypeError) and "positional argument" in message:
        return "the arguments in the StepSpec must match the parameters of the function"
    return ""


def _frames(error: BaseException) -> str:
    names = []
    trace = error.__traceback__
    while trace is not None:
        names.append(f"{trace.tb_frame.f_code.co_filename} {trace.tb_frame.f_code.co_name}")
        trace = trace.tb_next
    return "\n".join(names)


def as_workload_error(what: str, action: Callable[[], Any]) -> Any:
    """Run an action, and convert any error of the user's code or XLA to a `WorkloadError` with its traceback."""
    try:
        return action()
    except (MemprofError, Interrupted):
        raise
    except BaseException as error:  # includes SystemExit: importing the user's code may raise anything
        summary = f"{type(error).__name__}: {first_line(error)}".rstrip(": ")
        advice = hint(error)
        sentence = f"the step {what}: {summary}" + (f" ({advice})" if advice else "")
        raise WorkloadError(sentence, details=user_traceback(error)) from error
