"""From XLA's `HloModuleProto` to a `Program`: everything that it refers to is there, and its texts may be shown."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

from memprof.analysis.foreign import clean
from memprof.analysis.hlo_proto import PRIMITIVE_TYPES, parse_shape
from memprof.analysis.program import (
    COLLECTIVES,
    Computation,
    Frame,
    Instruction,
    Program,
    ResultLeaf,
    Shape,
    combines,
)
from memprof.analysis.program_checks import check_program, check_shape, check_unique
from memprof.analysis.replica_groups import device_groups
from memprof.errors import InternalError

_Item = TypeVar("_Item")
_MAX_ELEMENT_BYTES = 16  # c128
_WITH_DIMENSIONS = frozenset({"broadcast", "iota", "reduce", "reverse", "sort", "transpose"})
# `jit(step)/(jvp(layer_0)/dot_general:jvp(layer_1)/dot_general)`; in jaxlib 0.12 also paths of arguments.
_JOINED_NAMES = re.compile(r"(?:^|/)\(.*:.*\)$", re.DOTALL)
_MAX_TEXT = 1 << 14  # XLA joins the names of operations that it merges; no rule reads on so far


def decode_program(proto: Any) -> Program:
    """Decode `proto.hlo_module`, and check that it holds together.

    Args:
        proto: an `xla.HloProto` (see `hlo_proto.py`).

    Raises:
        MemprofError: a shape in it cannot be read.
        InternalError: the module refers to a computation, an instruction or a source file that it does not have, or
            does not hold together otherwise (see `program_checks.py`).
    """
    try:
        program = _decode_module(proto.hlo_module)
    except KeyError as error:
        raise InternalError(
            f"the program refers to what is not in it ({error}); the capture's proto is no compiled HLO module"
        ) from error
    check_program(program)
    return program


def _decode_module(module: Any) -> Program:
    check_unique("computations", [computation.id for computation in module.computations])
    sequences = {entry.key: entry.value.instruction_ids for entry in module.schedule.sequences}
    computation_by_id = {computation.id: index for index, computation in enumerate(module.computations)}
    messages = [list(computation.instructions) for computation in module.computations]
    instruction_by_id: dict[int, int] = {}
    for message in chain.from_iterable(messages):
        number = message.id
        if number in instruction_by_id:
            raise InternalError(f"two instructions of the program have the same number, {number}")
        instruction_by_id[number] = len(instruction_by_id)

    instructions: list[Instruction] = []
    computations: list[Computation] = []
    shapes: dict[bytes, Shape] = {}
    num_positions = 0
    for computation, own_messages in zip(module.computations, messages, strict=True):
        first = len(instructions)
        parameters: dict[int, int] = {}
        for index, message in enumerate(own_messages, start=first):
            serialized = message.shape
            shape = shapes.get(serialized)
            if shape is None:
                shape = shapes[serialized] = _shape(parse_shape(serialized))
            instruction = _instruction(message, shape, num_positions, instruction_by_id, computation_by_id)
            num_positions += len(shape.leaves)
            instructions.append(instruction)
            if instruction.opcode == "parameter":
                if instruction.parameter_number in parameters:
                    raise InternalError(f"two parameters of one computation have number {instruction.parameter_number}")
                parameters[instruction.parameter_number] = index
        scheduled = sequences.get(computation.id)
        order = map(instruction_by_id.__getitem__, scheduled) if scheduled else range(first, len(instructions))
        computations.append(
            Computation(
                name=_text(computation.name),
                instructions=tuple(order),
                parameters=tuple(parameters[number] for number in sorted(parameters)),
                root=instruction_by_id[computation.root_id],
            )
        )
    return Program(
        instructions=instructions,
        computations=computations,
        entry=computations[computation_by_id[module.entry_computation_id]],
        num_positions=num_positions,
        instruction_by_id=instruction_by_id,
        frames=_frames(module.stack_frame_index),
    )


def _instruction(
    message: Any,
    shape: Shape,
    first_position: int,
    instruction_by_id: dict[int, int],
    computation_by_id: dict[int, int],
) -> Instruction:
    # Reading a field makes a Python object each time, and a repeated one that is sliced takes less than one that is
    # gone through (protobuf 7).
    opcode = _repeated_text(message.opcode)
    name, metadata, called = message.name, message.metadata, message.called_computation_ids
    operands = tuple([instruction_by_id[operand] for operand in message.operand_ids[:]])
    op_name = _op_name(metadata.op_name)
    is_told = bool(op_name) or not metadata.op_name  # by metadata of its own, and not of several
    if opcode in COLLECTIVES and combines(opcode, len(operands)):
        op_name, is_told = "", False
    source_file = _repeated_text(metadata.source_file) if is_told else ""
    return Instruction(
        name=name if name.isprintable() and len(name) <= _MAX_TEXT else _text(name),
        opcode=opcode,
        shape=shape,
        first_position=first_position,
        operands=operands,
        called=tuple([computation_by_id[number] for number in called[:]]) if called else (),
        parameter_number=message.parameter_number if opcode == "parameter" else 0,
        tuple_index=message.tuple_index if opcode == "get-tuple-element" else 0,
        custom_call_target=_text(message.custom_call_target) if opcode == "custom-call" else "",
        op_name=op_name,
        source_file=source_file,
        source_line=metadata.source_line if source_file else 0,
        stack_frame_id=metadata.stack_frame_id if is_told else 0,
        trip_count=_trip_count(message.backend_config) if opcode == "while" else None,
        dimensions=tuple(message.dimensions[:]) if opcode in _WITH_DIMENSIONS else (),
        device_groups=device_groups(message) if opcode in COLLECTIVES else (),
    )


def _trip_count(backend_config: bytes) -> int | None:
    """XLA notes what it found out of a loop in the loop's backend config, as JSON (jaxlib 0.10.2 to 0.12)."""
    match = re.search(rb'"known_trip_count":\{"n":"(\d{1,18})"', backend_config)
    return int(match.group(1)) if match else None


def _shape(message: Any) -> Shape:
    if not message.tuple_shapes:
        return _array_shape(message.element_type, tuple(message.dimensions))
    leaves: list[ResultLeaf] = []
    starts = [0]
    for index, child in enumerate(message.tuple_shapes):
        for leaf in _shape(child).leaves:
            leaves.append(ResultLeaf((index, *leaf.shape_index), leaf.dtype, leaf.dimensions))
        starts.append(len(leaves))
    return Shape(tuple(leaves), tuple(starts))


@lru_cache(maxsize=4096)
def _array_shape(element_type: int, dimensions: tuple[int, ...]) -> Shape:
    """Programs repeat a few shapes over and over. An empty tuple has no leaves."""
    check_shape(_MAX_ELEMENT_BYTES, dimensions)
    dtype = PRIMITIVE_TYPES.get(element_type) or f"type{element_type}"
    return Shape((), (0,)) if dtype == "tuple" else Shape((ResultLeaf((), dtype, dimensions),), None)


def _frames(index: Any) -> list[tuple[Frame, int]]:
    files, functions = list(map(_text, index.file_names)), list(map(_text, index.function_names))
    locations = list(index.file_locations)
    frames = []
    for message in index.stack_frames:
        location = _numbered(locations, message.file_location_id)
        file, function = _numbered(files, location.file_name_id), _numbered(functions, location.function_name_id)
        # XLA writes the bottom frame's parent as 0 (jaxlib 0.10.2 to 0.12).
        frames.append((Frame(file, function, location.line), message.parent_frame_id))
    return frames


def _numbered(items: list[_Item], number: int) -> _Item:
    """The item of a number; they count from 1."""
    if not 0 < number <= len(items):
        raise KeyError(number)
    return items[number - 1]


def _text(text: str) -> str:
    """A name as it may be shown; see `foreign.clean`."""
    text = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT]
    return text if text.isprintable() else clean(text)


@lru_cache(maxsize=1 << 14)
def _repeated_text(text: str) -> str:
    """A name that many instructions have: the same object for each, which keeps its hash for whoever looks it up."""
    return _text(text)


@lru_cache(maxsize=1 << 14)
def _op_name(text: str) -> str:
    """The op name of an instruction; empty where XLA has joined those of collectives that it has combined."""
    return "" if _JOINED_NAMES.search(text) else _text(text)
