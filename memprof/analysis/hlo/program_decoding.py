"""Decode XLA's `HloModuleProto` to a `Program` whose references all exist and whose texts are safe to display."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from msgspec.structs import replace

from memprof.analysis.hlo.hlo_proto import PRIMITIVE_TYPES, parse_shape
from memprof.analysis.hlo.products import WITH_PRODUCTS, product_of
from memprof.analysis.hlo.program import (
    COLLECTIVES,
    Computation,
    Frame,
    Instruction,
    Program,
    ResultLeaf,
    Shape,
    combines,
)
from memprof.analysis.hlo.program_checks import check_layout, check_program, check_shape, check_unique
from memprof.analysis.hlo.replica_groups import device_groups
from memprof.analysis.hlo.tiling import Tiles, layout_text, padded_shape
from memprof.analysis.hlo.trip_counts import trip_count
from memprof.errors import InternalError
from memprof.untrusted import clean

_Item = TypeVar("_Item")
_MAX_ELEMENT_BYTES = 16  # c128
_WITH_DIMENSIONS = frozenset({"broadcast", "iota", "reduce", "reverse", "sort", "transpose"})
# `jit(step)/(jvp(layer_0)/dot_general:jvp(layer_1)/dot_general)`; jaxlib 0.12 also joins paths of arguments.
_JOINED_NAMES = re.compile(r"(?:^|/)\(.*:.*\)$", re.DOTALL)
_UNSPECIFIED = ("", "", 0, 0)  # merged metadata of several instructions describe no single one
_MAX_TEXT = 1 << 14  # XLA joins the names of operations that it merges; no rule needs more text


def decode_program(proto: Any) -> Program:
    """Decode `proto.hlo_module`, and check that it is consistent.

    Args:
        proto: an `xla.HloProto` from `parse_proto`.

    Raises:
        MemprofError: a computation or a shape in it cannot be read.
        InternalError: the module refers to a computation, an instruction or a source file that it does not contain, or
            is inconsistent otherwise (see `program_checks.py`).
    """
    try:
        program = _decode_module(proto.hlo_module)
    except KeyError as error:
        raise InternalError(
            f"the program refers to something that is not in it ({error}); the capture's proto is not a compiled HLO "
            "module"
        ) from error
    check_program(program)
    return program


def _decode_module(module: Any) -> Program:
    sequences = {entry.key: entry.value.instruction_ids for entry in module.schedule.sequences}
    parsed = module.computations[:]
    check_unique("computations", [computation.id for computation in parsed])
    ids = [message.id for computation in parsed for message in computation.instructions]
    index_of_id = {number: index for index, number in enumerate(ids)}
    if len(index_of_id) < len(ids):
        raise InternalError("two instructions of the program have the same number")
    computation_by_id = {computation.id: index for index, computation in enumerate(parsed)}

    instructions: list[Instruction] = []
    computations: list[Computation] = []
    read = _Reader(computation_by_id, index_of_id)
    num_positions = 0
    for computation in parsed:
        first = len(instructions)
        for message in computation.instructions:
            instructions.append(read.instruction(message, num_positions))
            num_positions += len(instructions[-1].shape.leaves)
        scheduled = sequences.get(computation.id)
        order = map(index_of_id.__getitem__, scheduled) if scheduled else range(first, len(instructions))
        computations.append(
            Computation(
                name=_text(computation.name),
                instructions=tuple(order),
                parameters=_parameters(instructions, first),
                root=index_of_id[computation.root_id],
            )
        )
    _give_operands_to_starts(instructions)
    _count_iterations(instructions, parsed, index_of_id)
    return Program(
        instructions=instructions,
        computations=computations,
        entry=computations[computation_by_id[module.entry_computation_id]],
        num_positions=num_positions,
        index_of_id=index_of_id,
        frames=_frames(module.stack_frame_index),
    )


def _count_iterations(instructions: list[Instruction], parsed: Sequence[Any], index_of_id: Mapping[int, int]) -> None:
    """Find the trip counts of loops for which XLA has not recorded it."""
    uncounted = {i for i, each in enumerate(instructions) if each.opcode == "while" and each.trip_count is None}
    if not uncounted:
        return
    by_id = {each.id: each for each in parsed}
    for computation in parsed:
        for message in computation.instructions:
            if message.opcode == "while" and (index := index_of_id[message.id]) in uncounted:
                instructions[index] = replace(instructions[index], trip_count=trip_count(message, computation, by_id))


def _give_operands_to_starts(instructions: list[Instruction]) -> None:
    """Make each background operation start at the instruction that reads its operands.

    A TPU launches work on its SparseCores by an `async-start` without operands and results, which names the
    computation. The operands are those of the first `async-update`, which has the form of an ordinary `async-start`
    (libtpu 0.0.42 to 0.0.50). So the update becomes the start, and the launch becomes an instruction that passes
    nothing on.
    """
    for index, update in enumerate(instructions):
        if update.opcode != "async-update" or not update.operands:
            continue
        launch = instructions[update.operands[0]]
        starts = launch.shape.child_starts
        if launch.opcode != "async-start" or launch.operands or starts is None or starts[2:3] != (0,):
            continue
        instructions[index] = replace(
            update,
            opcode="async-start",
            operands=update.operands[1:],
            called=launch.called,
            op_name=launch.op_name,
            source_file=launch.source_file,
            source_line=launch.source_line,
            stack_frame_id=launch.stack_frame_id,
        )
        instructions[update.operands[0]] = replace(launch, opcode="after-all", called=())


def _parameters(instructions: Sequence[Instruction], first: int) -> tuple[int, ...]:
    """Return the parameters of the last computation, by number. Args: first: its first instruction."""
    parameters: dict[int, int] = {}
    for index in range(first, len(instructions)):
        instruction = instructions[index]
        if instruction.opcode == "parameter":
            if instruction.parameter_number in parameters:
                raise InternalError(f"two parameters of one computation have number {instruction.parameter_number}")
            parameters[instruction.parameter_number] = index
    return tuple([parameters[number] for number in sorted(parameters)])


class _Reader:
    """Makes instructions from messages; reads shared parts once."""

    def __init__(self, computation_by_id: Mapping[int, int], index_of_id: Mapping[int, int]) -> None:
        self._computation_by_id = computation_by_id
        self._index_of_id = index_of_id
        self._shapes: dict[bytes, Shape] = {}

    def instruction(self, message: Any, first_position: int) -> Instruction:
        # Each read of a field makes a Python object, and slicing a repeated field is faster than iterating over it
        # (protobuf 7).
        opcode = _repeated_text(message.opcode)
        called = message.called_computation_ids
        operands = tuple([self._index_of_id[operand] for operand in message.operand_ids[:]])
        is_combined = opcode in COLLECTIVES and combines(opcode, len(operands))
        op_name, source_file, source_line, stack_frame_id = (
            _UNSPECIFIED if is_combined else _metadata_fields(message.metadata)
        )
        return Instruction(
            _text(message.name),
            opcode,
            self._shape(message.shape),
            first_position,
            operands,
            tuple([self._computation_by_id[number] for number in called[:]]) if called else (),
            message.parameter_number if opcode == "parameter" else 0,
            message.tuple_index if opcode == "get-tuple-element" else 0,
            _text(message.custom_call_target) if opcode == "custom-call" else "",
            op_name,
            source_file,
            source_line,
            stack_frame_id,
            _trip_count(message.backend_config) if opcode == "while" else None,
            tuple(message.dimensions[:]) if opcode in _WITH_DIMENSIONS else (),
            device_groups(message) if opcode in COLLECTIVES else (),
            product_of(message) if opcode in WITH_PRODUCTS else None,
        )

    def _shape(self, serialized: bytes) -> Shape:
        if serialized not in self._shapes:
            self._shapes[serialized] = _shape(parse_shape(serialized))
        return self._shapes[serialized]


def _metadata_fields(metadata: Any) -> tuple[str, str, int, int]:
    """Return the origin of an instruction: its op name, and its stack frame or else file and line."""
    joined = metadata.op_name
    op_name = _op_name(joined)
    if joined and not op_name:
        return _UNSPECIFIED
    stack_frame_id = metadata.stack_frame_id
    if stack_frame_id:
        return op_name, "", 0, stack_frame_id
    source_file = _repeated_text(metadata.source_file)
    return op_name, source_file, metadata.source_line if source_file else 0, 0


def _trip_count(backend_config: bytes) -> int | None:
    """Read the trip count that XLA records in the loop's backend config, as JSON."""
    match = re.search(rb'"known_trip_count":\{"n":"(\d{1,18})"', backend_config)
    return int(match.group(1)) if match else None


def _shape(message: Any) -> Shape:
    if not message.tuple_shapes:
        layout = message.layout
        tiles = tuple([tuple(tile.dimensions) for tile in layout.tiles])
        dimensions = tuple(message.dimensions)
        order = tuple(layout.minor_to_major)
        return _array_shape(message.element_type, dimensions, layout.memory_space, order, tiles)
    leaves: list[ResultLeaf] = []
    starts = [0]
    for index, child in enumerate(message.tuple_shapes):
        for leaf in _shape(child).leaves:
            place = (index, *leaf.shape_index)
            leaves.append(replace(leaf, shape_index=place))
        starts.append(len(leaves))
    return Shape(tuple(leaves), tuple(starts))


@lru_cache(maxsize=4096)
def _array_shape(
    element_type: int, dimensions: tuple[int, ...], memory_space: int, order: tuple[int, ...], tiles: Tiles
) -> Shape:
    """Decode an array shape, cached because programs repeat a few shapes. An empty tuple has no leaves."""
    check_shape(_MAX_ELEMENT_BYTES, dimensions)
    check_layout(dimensions, order, tiles)
    padded = padded_shape(dimensions, order, tiles) if tiles else dimensions
    dtype = PRIMITIVE_TYPES.get(element_type) or f"type{element_type}"
    padded = padded if padded != dimensions else ()
    leaf = ResultLeaf((), dtype, dimensions, memory_space, padded, layout_text(dimensions, order, tiles))
    return Shape((), (0,)) if dtype == "tuple" else Shape((leaf,), None)


def _frames(index: Any) -> list[tuple[Frame, int]]:
    files, functions = list(map(_text, index.file_names)), list(map(_text, index.function_names))
    locations = list(index.file_locations)
    frames = []
    for message in index.stack_frames:
        location = _numbered(locations, message.file_location_id)
        file, function = _numbered(files, location.file_name_id), _numbered(functions, location.function_name_id)
        # XLA writes the bottom frame's parent as 0.
        frames.append((Frame(file, function, location.line), message.parent_frame_id))
    return frames


def _numbered(items: list[_Item], number: int) -> _Item:
    """Return an item by its number, counted from 1."""
    if not 0 < number <= len(items):
        raise KeyError(number)
    return items[number - 1]


def _text(text: str) -> str:
    """Return a name that is safe to display; see `untrusted.clean`."""
    text = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT]
    return text if text.isprintable() else clean(text)


@lru_cache(maxsize=1 << 14)
def _repeated_text(text: str) -> str:
    """Return a name that many instructions share, as one object, so that its hash is computed once."""
    return _text(text)


@lru_cache(maxsize=1 << 14)
def _op_name(text: str) -> str:
    """Return the op name of an instruction; empty if XLA has joined the names of combined collectives."""
    return "" if _JOINED_NAMES.search(text) else _text(text)
