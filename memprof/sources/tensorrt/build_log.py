"""Parser of the messages of TensorRT's builder: memory totals, and the layers.

The messages have the form of TensorRT for RTX 1.7.1, with detailed profiling verbosity.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from memprof.analysis.records.engine import Engine, EngineLayer, EngineTensor
from memprof.errors import InternalError

# XLA's names for the builder's types, with their sizes in bits.
_DTYPES = {
    "Float": ("f32", 32),
    "Half": ("f16", 16),
    "BFloat16": ("bf16", 16),
    "Double": ("f64", 64),
    "Int4": ("s4", 4),
    "Int8": ("s8", 8),
    "Int32": ("s32", 32),
    "Int64": ("s64", 64),
    "UInt8": ("u8", 8),
    "Bool": ("pred", 8),
    "FP4": ("f4e2m1fn", 4),
    "FP8": ("f8e4m3fn", 8),
    "E8M0": ("f8e8m0fnu", 8),
}
_TOTALS = {
    "weights_bytes": "Total Weights Memory",
    "activation_bytes": "Total Activation Memory",
    "scratch_bytes": "Max Scratch Memory",
    "device_persistent_bytes": "Total Device Persistent Memory",
    "host_persistent_bytes": "Total Host Persistent Memory",
}
_LAYERS = "Layers:\n"
_LAYER = re.compile(r"Name: (?P<name>.*?), LayerType: (?P<kind>\w+), (?P<rest>.*)")
_SECTIONS = re.compile(r"\b(Inputs|Constants|Outputs): \[( \{.*?\}|)\](?=, |$)")
_TENSOR = re.compile(
    r"\{ Name: (?P<name>.+?), (?:\w+: \w+, )*?Dimensions: \[(?P<shape>[-\d,]*)\].*?Datatype: (?P<dtype>\w+)"
)
_NODE = re.compile(r"\[ONNX Layer: (.*?)\]")
_LONGEST = 1000  # characters of a name: the name of a fused layer contains the names of all its parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The inputs and outputs of an engine, as declared by its network."""

    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]


def read_engine(
    messages: Iterable[str], boundary: Boundary, *, version: str, static_messages: Iterable[str] | None = None
) -> Engine:
    """Return the engine that messages describe.

    Args:
        static_messages: messages of the same network built for the profile's maximum, if shapes vary. They are needed
            because a dump of layers leaves variable dimensions open.

    Raises:
        InternalError: a total is missing, or a layer cannot be read.
    """
    messages = list(messages)
    tensors = _Tensors({each.name for each in (*boundary.inputs, *boundary.outputs)})
    layers = tuple(map(tensors.layer, _layer_lines(messages if static_messages is None else static_messages)))
    return Engine(
        builder="tensorrt",
        version=version,
        **_totals(messages),
        inputs=boundary.inputs,
        outputs=boundary.outputs,
        tensors=tuple(tensors.between.values()),
        constants=tuple(tensors.constants.values()),
        layers=layers,
        is_dynamic=static_messages is not None,
    )


def tensor(name: str, shape: Iterable[int], dtype: str) -> EngineTensor:
    """Return a tensor, from the builder's name of its type.

    Raises:
        InternalError: there is no such type.
    """
    if dtype not in _DTYPES:
        raise InternalError(f"TensorRT's type {dtype} is unknown")
    shape, (word, num_bits) = tuple(shape), _DTYPES[dtype]
    return EngineTensor(name=name[:_LONGEST], shape=shape, dtype=word, size_bytes=-(-prod(shape) * num_bits // 8))


def _totals(messages: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for message in messages:
        for field, text in _TOTALS.items():
            matched = re.fullmatch(rf"{text}: (\d+) bytes", message.strip())
            if matched:
                found[field] = int(matched[1])
    missing = [text for field, text in _TOTALS.items() if field not in found]
    if missing:
        raise InternalError(f"TensorRT's builder did not report: {', '.join(missing)}")
    return found


def _layer_lines(messages: Iterable[str]) -> list[str]:
    dumps = [message for message in messages if message.startswith(_LAYERS)]
    if not dumps:
        raise InternalError("TensorRT's builder listed no layers")
    return [line for line in dumps[-1].partition("\n\n")[0].splitlines()[1:] if line.strip()]


class _Tensors:
    """The tensors of layers by name, each with the largest shape that any layer reports."""

    def __init__(self, outside: set[str]) -> None:
        self._outside = outside
        self.between: dict[str, EngineTensor] = {}
        self.constants: dict[str, EngineTensor] = {}
        self._numbers: dict[str, int] = {}
        self._constant_numbers: dict[str, int] = {}

    def layer(self, line: str) -> EngineLayer:
        found = _LAYER.fullmatch(line.strip())
        if found is None:
            raise InternalError(f"TensorRT describes a layer in an unknown form: {line[:200]}")
        sections = dict(_SECTIONS.findall(found["rest"]))
        inside = [self._numbered(sections.get(name, ""), self.between, self._numbers) for name in ("Inputs", "Outputs")]
        return EngineLayer(
            name=found["name"][:_LONGEST],
            kind=found["kind"],
            inputs=inside[0],
            outputs=inside[1],
            constants=self._numbered(sections.get("Constants", ""), self.constants, self._constant_numbers),
            nodes=tuple(name[:_LONGEST] for name in dict.fromkeys(_NODE.findall(found["rest"]))),
        )

    def _numbered(self, text: str, known: dict[str, EngineTensor], numbers: dict[str, int]) -> tuple[int, ...]:
        """Return the numbers of the tensors in a section."""
        seen: list[int] = []
        for match in _TENSOR.finditer(text):
            name = match["name"][:_LONGEST]
            if name in self._outside:
                continue
            sizes = [int(size) for size in match["shape"].split(",") if size]
            made = tensor(name, [max(size, 0) for size in sizes], match["dtype"])
            seen.append(numbers.setdefault(name, len(numbers)))
            if name not in known or known[name].size_bytes < made.size_bytes:
                known[name] = made
        return tuple(dict.fromkeys(seen))
