"""An inference engine as its builder describes it: memory totals, and the layers with their tensors."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from memprof.untrusted import Bytes, Count, Dimensions, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTensor:
    """A tensor of an engine.

    Attributes:
        shape: at the maximum of the optimization profile.
        dtype: in XLA's words: `f32`, `bf16`, `s8`.
    """

    name: Text
    shape: Dimensions
    dtype: Text
    size_bytes: Bytes

    @property
    def has_sane_size(self) -> bool:
        """Whether its elements have between 4 and 64 bits each; what a file says need not be so."""
        num_elements = prod(self.shape)
        return num_elements <= 2 * self.size_bytes and self.size_bytes <= 8 * num_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLayer:
    """A layer, in the order in which the engine runs them.

    Attributes:
        kind: the builder's word: `gemm`, `kgen`, `runtime_fusion`.
        inputs, outputs: numbers of tensors in `Engine.tensors`; inputs and outputs of the engine are not among them.
        constants: weights that it reads; numbers in `Engine.constants`.
        nodes: names of the ONNX nodes that it is made of.
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
        inputs, outputs: of the engine.
        tensors: values between layers; `constants`: weights as the layers read them.
        is_dynamic: whether shapes vary up to those of the profile. The layers are then those of a second engine, built
            for the maximum alone.
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
    """What an engine holds. The first five are the compiler's and add up to the footprint; the last is inferred.

    Attributes:
        scratch_bytes: a part of `activation_bytes`.
        replayed_bytes: the most that the tensors between layers hold at once, from the order of the layers.
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
    """The first contradiction in an engine that was read from a file, in words; empty if it has none."""
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
