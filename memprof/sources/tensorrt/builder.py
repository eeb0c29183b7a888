"""The process that builds an engine: `python -m memprof.sources.tensorrt.builder FOLDER`.

It reads `request.json` in the folder, and writes `result.json`. TensorRT runs in a separate process, because it can end
its process and writes to its output. Only this module uses TensorRT.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import tensorrt_rtx as trt

from memprof.errors import MemprofError
from memprof.sources.tensorrt.onnx_model import ModelInput, check_maxima, read_inputs, read_weights, with_int8_products
from memprof.sources.tensorrt.request import REQUEST_FILE, RESULT_FILE, BuildRequest, BuildResult, NamedArray
from memprof.sources.tensorrt.varying import vary

_DTYPES = {
    trt.DataType.FLOAT: "Float",
    trt.DataType.HALF: "Half",
    trt.DataType.BF16: "BFloat16",
    trt.DataType.INT8: "Int8",
    trt.DataType.INT32: "Int32",
    trt.DataType.INT64: "Int64",
    trt.DataType.UINT8: "UInt8",
    trt.DataType.BOOL: "Bool",
    trt.DataType.FP8: "FP8",
}


def main(folder: Path) -> None:
    """Build the engine of a request."""
    request = msgspec.json.decode((folder / REQUEST_FILE).read_bytes(), type=BuildRequest)
    try:
        result = _built(request, folder)
    except MemprofError as error:
        result = BuildResult(error=str(error))
    (folder / RESULT_FILE).write_bytes(msgspec.json.encode(result))


def _built(request: BuildRequest, folder: Path) -> BuildResult:
    path, started = Path(request.model), time.perf_counter()
    if request.varying:
        path = folder / "varying.onnx"
        vary([Path(request.model), *map(Path, request.smaller_models)], request.varying, path)
    inputs = read_inputs(path)
    check_maxima(inputs, request.maxima, model=request.name)
    weights = read_weights(path)
    if request.int8:
        plain, path = path, folder / "int8.onnx"
        with_int8_products(plain, path)
    messages, boundary = _build(path, request, inputs, is_static=not request.maxima)
    static_messages = None
    if request.maxima:
        static_messages, boundary = _build(path, request, inputs, is_static=True)
    return BuildResult(
        version=trt.__version__,
        messages=messages,
        static_messages=static_messages,
        inputs=boundary[0],
        outputs=boundary[1],
        weights=weights,
        seconds=time.perf_counter() - started,
    )


def _build(
    path: Path, request: BuildRequest, inputs: tuple[ModelInput, ...], *, is_static: bool
) -> tuple[list[str], tuple[list[NamedArray], list[NamedArray]]]:
    """Build an engine. Return the builder's messages, and the engine's inputs and outputs.

    Raises:
        MemprofError: TensorRT rejects the model.
    """
    log = _Log()
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(path)):
        reasons = [parser.get_error(number).desc() for number in range(parser.num_errors)]
        raise MemprofError(f"TensorRT cannot read {request.name}: {_sentence(reasons)}")
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    major, minor = request.compute_capability
    config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{major}{minor}"), 0)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    shapes = {each.name: each.at(request.maxima) for each in inputs}
    placed = [network.get_input(number) for number in range(network.num_inputs)]
    if is_static:
        for tensor in placed:
            tensor.shape = shapes[tensor.name]
    else:
        config.add_optimization_profile(_profile(builder, placed, inputs, shapes))
    if builder.build_serialized_network(network, config) is None:
        raise MemprofError(f"TensorRT cannot build {request.name}: {_sentence(log.errors)}")
    if not is_static:
        return log.messages, ([], [])
    results = [network.get_output(number) for number in range(network.num_outputs)]
    return log.messages, (_arrays(placed, request), _arrays(results, request))


def _profile(builder: Any, placed: list[Any], inputs: tuple[ModelInput, ...], shapes: dict[str, Any]) -> Any:
    """Return a profile from 1 to the maximum of each variable dimension, optimised for the maximum."""
    profile = builder.create_optimization_profile()
    declared = {each.name: each.shape for each in inputs}
    for tensor in placed:
        if tensor.is_shape_tensor:
            raise MemprofError(f"the input {tensor.name} is a shape, whose values decide sizes: fix it in the model")
        least = tuple(1 if isinstance(size, str) else size for size in declared[tensor.name])
        profile.set_shape(tensor.name, least, shapes[tensor.name], shapes[tensor.name])
    return profile


def _arrays(tensors: list[Any], request: BuildRequest) -> list[NamedArray]:
    found = []
    for tensor in tensors:
        shape = tuple(tensor.shape)
        if any(size < 0 for size in shape):
            raise MemprofError(
                f"the size of {tensor.name} in {request.name} depends on values, which a builder does not know"
            )
        found.append(NamedArray(name=tensor.name, shape=shape, dtype=_DTYPES.get(tensor.dtype, str(tensor.dtype))))
    return found


def _sentence(reasons: list[str]) -> str:
    first = next((line.strip() for reason in reasons for line in reason.splitlines() if line.strip()), "")
    return first or "it gives no reason"


class _Log(trt.ILogger):
    """A log that stores the builder's messages."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.messages: list[str] = []
        self.errors: list[str] = []

    def log(self, severity: Any, message: str) -> None:
        """Store a message. TensorRT calls this method."""
        if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
            self.errors.append(message)
            print(message, file=sys.stderr)
        elif message.startswith(("Layers:", "Total ", "Max Scratch")):
            self.messages.append(message)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
