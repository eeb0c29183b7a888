"""An inference engine as described by its builder: memory totals, and the layers with their tensors."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from memprof.untrusted import Bytes, Count, Dimensions, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTensor:
    """A tensor of an engine.

    Attributes:
        shape: its shape at the maximum of the optimization profile.
        dtype: XLA's name: `f32`, `bf16`, `s8`.
    """

    name: Text
    shape: Dimensions
    dtype: Text
    size_bytes: Bytes

    @property
    def has_sane_size(self) -> bool:
        """Whether its elements have between 4 and 64 bits each. A file may contain an impossible size."""
        num_elements = prod(self.shape)
        return num_elements <= 2 * self.size_bytes and self.size_bytes <= 8 * num_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLayer:
    """A layer of an engine.

    Attributes:
        kind: the builder's name of its kind: `gemm`, `kgen`, `runtime_fusion`.
        inputs, outputs: numbers of tensors in `Engine.tensors`, without inputs and outputs of the engine.
        constants: the weights that it reads, as numbers in `Engine.constants`.
        nodes: the names of its ONNX nodes.
    """

    name: Text
    kind: Text
    inputs: tuple[Count, ...]
    outputs: tuple[Count, ...]
    constants: tuple[Count, ...]
    nodes: tuple[Text, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine.

    Attributes:
        builder, version: `tensorrt`, and the version of TensorRT for RTX.
        weights_bytes, activation_bytes, device_persistent_bytes, host_persistent_bytes: the builder's totals.
        scratch_bytes: the largest scratch memory of a layer, which is a part of `activation_bytes`.
        inputs, outputs: the inputs and outputs of the engine.
        tensors: the values between layers; `constants`: the weights as the layers read them.
        layers: the layers in execution order.
        is_dynamic: whether shapes vary up to those of the profile. The layers are then those of a second engine, built
            only for the maximum.
    """

    builder: Text
    version: Text
    weights_bytes: Bytes
    activation_bytes: Bytes
    scratch_bytes: Bytes
    device_persistent_bytes: Bytes
    host_persistent_bytes: Bytes
    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    tensors: tuple[EngineTensor, ...]
    constants: tuple[EngineTensor, ...]
    layers: tuple[EngineLayer, ...]
    is_dynamic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """The memory of an engine. The first five figures are the compiler's and add up to the footprint.

    Attributes:
        scratch_bytes: a part of `activation_bytes`.
        replayed_bytes: the peak of the tensors between layers, inferred from the order of the layers.
    """

    weights_bytes: int
    activation_bytes: int
    input_bytes: int
    output_bytes: int
    persistent_bytes: int
    scratch_bytes: int
    host_persistent_bytes: int
    replayed_bytes: int
    is_dynamic: bool


def fault_of(engine: Engine) -> str:
    """Describe the first contradiction in an engine from a file; empty if it has none."""
    for layer in engine.layers:
        if any(number >= len(engine.tensors) for number in (*layer.inputs, *layer.outputs)):
            return "a layer has a tensor that does not exist"
        if any(number >= len(engine.constants) for number in layer.constants):
            return "a layer reads a constant that does not exist"
    if {number for layer in engine.layers for number in layer.constants} != set(range(len(engine.constants))):
        return "no layer reads a constant"
    for tensor in (*engine.inputs, *engine.outputs, *engine.tensors, *engine.constants):
        if not tensor.has_sane_size:
            return "the shape and the size of a tensor contradict each other"
    return ""
