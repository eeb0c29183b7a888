"""From XLA's `HloModuleProto` to a `Program`: everything that it refers to is there, and its texts may be shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from msgspec.structs import replace

from memprof.analysis.hlo.hlo_proto import PRIMITIVE_TYPES, parse_computations, parse_shape
from memprof.analysis.hlo.item_count import check_count
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
from memprof.analysis.hlo.repeated_bodies import Body, BodyKey, InstructionIds
from memprof.analysis.hlo.replica_groups import device_groups
from memprof.analysis.hlo.tiling import Tiles, layout_text, padded_shape
from memprof.analysis.hlo.trip_counts import trip_count
from memprof.errors import InternalError
from memprof.untrusted import clean

_Item = TypeVar("_Item")
_MAX_ELEMENT_BYTES = 16  # c128
_WITH_DIMENSIONS = frozenset({"broadcast", "iota", "reduce", "reverse", "sort", "transpose"})
# `jit(step)/(jvp(layer_0)/dot_general:jvp(layer_1)/dot_general)`; in jaxlib 0.12 also paths of arguments.
_JOINED_NAMES = re.compile(r"(?:^|/)\(.*:.*\)$", re.DOTALL)
_UNTOLD = ("", "", 0, 0)  # the metadata of several instructions is that of none
# Of these more than names differs between computations that are alike: devices, how often a loop runs, whether they
# call anything.
_TELL_MORE = frozenset({"while", "custom-call", *COLLECTIVES})
_MAX_TEXT = 1 << 14  # XLA joins the names of operations that it merges; no rule reads on so far


def decode_program(proto: Any) -> Program:
    """Decode `proto.hlo_module`, and check that it holds together.

    Args:
        proto: an `xla.HloProto` as `parse_proto` opens it.

    Raises:
        MemprofError: a computation or a shape in it cannot be read.
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
    sequences = {entry.key: entry.value.instruction_ids for entry in module.schedule.sequences}
    first_alike, index_of_id = _numbered_instructions(module.computations[:], sequences)
    parsed = parse_computations(module)
    check_unique("computations", [computation.id for computation in parsed])
    if index_of_id.are_ambiguous:
        raise InternalError("two instructions of the program have the same number")
    computation_by_id = {computation.id: index for index, computation in enumerate(parsed)}

    instructions: list[Instruction] = []
    computations: list[Computation] = []
    firsts: list[int] = []  # of the instructions of each computation
    read = _Reader(computation_by_id, index_of_id)
    num_positions = 0
    for number, (computation, alike) in enumerate(zip(parsed, first_alike, strict=True)):
        first, messages = len(instructions), computation.instructions
        firsts.append(first)
        if alike != number:
            original = computations[alike]
            own = instructions[firsts[alike] : firsts[alike] + len(messages)]  # as the proto lists them
            shift = first - firsts[alike], num_positions - own[0].first_position
            instructions += read.renamed(own, messages, *shift)
            num_positions += own[-1].positions.stop - own[0].first_position
            computations.append(_moved(original, _text(computation.name), shift[0]))
            continue
        for message in messages:
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
                first_alike=number,
            )
        )
    _give_operands_to_starts(instructions)
    _count_turns(instructions, parsed, index_of_id)
    return Program(
        instructions=instructions,
        computations=computations,
        entry=computations[computation_by_id[module.entry_computation_id]],
        num_positions=num_positions,
        index_of_id=index_of_id,
        frames=_frames(module.stack_frame_index),
    )


def _numbered_instructions(
    serialized: Sequence[bytes], sequences: Mapping[int, Sequence[int]]
) -> tuple[list[int], InstructionIds]:
    """For each computation the number of the first that is like it, and the index of each instruction by its id.

    Args:
        serialized: the computations.
        sequences: the order in which the instructions of a computation run, by its id; of some.
    """
    first_alike: list[int] = []
    index_of_id = InstructionIds()
    first_with: dict[BodyKey, int] = {}
    begins: dict[int, tuple[int, int]] = {}  # of the first of a kind: its first number, and its first index
    count, num_bytes = 0, sum(map(len, serialized))
    for number, data in enumerate(serialized):
        body = Body(data)
        check_count(count + body.num_instructions, num_bytes)
        key = body.key(sequences.get(body.id, ()))
        alike = number if key is None else first_with.get(key, number)
        if alike == number:
            index_of_id.add(body.ids, count)
            if key is not None and _TELL_MORE.isdisjoint(body.opcodes):
                first_with[key] = number
                begins[number] = body.first_number, count
        else:
            base, begin = begins[alike]
            index_of_id.add_alike(body.first_number, base, count - begin)
        first_alike.append(alike)
        count += body.num_instructions
    return first_alike, index_of_id


def _count_turns(instructions: list[Instruction], parsed: Sequence[Any], index_of_id: InstructionIds) -> None:
    """Count the turns of the loops of which XLA has not noted it."""
    uncounted = {i for i, each in enumerate(instructions) if each.opcode == "while" and each.trip_count is None}
    if not uncounted:
        return
    by_id = {each.id: each for each in parsed}
    for computation in parsed:
        for message in computation.instructions:
            if message.opcode == "while" and (index := index_of_id[message.id]) in uncounted:
                instructions[index] = replace(instructions[index], trip_count=trip_count(message, computation, by_id))


def _give_operands_to_starts(instructions: list[Instruction]) -> None:
    """Have what runs in the background begin where it takes its operands.

    What a TPU gives to its SparseCores is launched by an `async-start` without operands and results, which names the
    computation; the operands come with the first `async-update`, which has the form of an ordinary `async-start`
    (libtpu 0.0.42 to 0.0.50). So that one becomes the start, and the launch an instruction that passes nothing on.
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
    """The parameters of the last computation, by number. Args: first: its first instruction."""
    parameters: dict[int, int] = {}
    for index in range(first, len(instructions)):
        instruction = instructions[index]
        if instruction.opcode == "parameter":
            if instruction.parameter_number in parameters:
                raise InternalError(f"two parameters of one computation have number {instruction.parameter_number}")
            parameters[instruction.parameter_number] = index
    return tuple([parameters[number] for number in sorted(parameters)])


def _moved(computation: Computation, name: str, by: int) -> Computation:
    """A computation that is like another one. Args: by: how many instructions lie between the two."""
    return Computation(
        name=name,
        instructions=tuple([index + by for index in computation.instructions]),
        parameters=tuple([index + by for index in computation.parameters]),
        root=computation.root + by,
        first_alike=computation.first_alike,
    )


class _Reader:
    """Makes instructions of messages; what many have in common is read once."""

    def __init__(self, computation_by_id: Mapping[int, int], index_of_id: InstructionIds) -> None:
        self._computation_by_id = computation_by_id
        self._index_of_id = index_of_id
        self._shapes: dict[bytes, Shape] = {}

    def instruction(self, message: Any, first_position: int) -> Instruction:
        # Reading a field makes a Python object each time, and a repeated one that is sliced takes less than one that is
        # gone through (protobuf 7).
        opcode = _repeated_text(message.opcode)
        called = message.called_computation_ids
        operands = tuple([self._index_of_id[operand] for operand in message.operand_ids[:]])
        is_combined = opcode in COLLECTIVES and combines(opcode, len(operands))
        op_name, source_file, source_line, stack_frame_id = _UNTOLD if is_combined else _told(message.metadata)
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

    def renamed(
        self, originals: Sequence[Instruction], messages: Iterable[Any], by_index: int, by_position: int
    ) -> Iterator[Instruction]:
        """The instructions of a computation that is like another one.

        Args:
            originals: those of the other one.
            by_index, by_position: how many instructions and how many positions lie between the two.
        """
        for original, message in zip(originals, messages, strict=True):
            name, operands, called = message.name, original.operands, original.called
            if called:
                called = tuple([self._computation_by_id[number] for number in message.called_computation_ids])
                if len(called) != len(original.called):
                    raise InternalError(f"{_text(name)} calls another number of computations than what it is like")
            op_name, source_file, source_line, stack_frame_id = _told(message.metadata)
            yield Instruction(
                name if name.isprintable() and len(name) <= _MAX_TEXT else _text(name),
                original.opcode,
                original.shape,
                original.first_position + by_position,
                tuple([operand + by_index for operand in operands]) if operands else (),
                called,
                original.parameter_number,
                original.tuple_index,
                original.custom_call_target,
                op_name,
                source_file,
                source_line,
                stack_frame_id,
                None,
                original.dimensions,
                (),
                original.product,
            )

    def _shape(self, serialized: bytes) -> Shape:
        if serialized not in self._shapes:
            self._shapes[serialized] = _shape(parse_shape(serialized))
        return self._shapes[serialized]


def _told(metadata: Any) -> tuple[str, str, int, int]:
    """Where an instruction comes from: its op name, and its stack frame or else file and line."""
    joined = metadata.op_name
    op_name = _op_name(joined)
    if joined and not op_name:
        return _UNTOLD
    stack_frame_id = metadata.stack_frame_id
    if stack_frame_id:
        return op_name, "", 0, stack_frame_id
    source_file = _repeated_text(metadata.source_file)
    return op_name, source_file, metadata.source_line if source_file else 0, 0


def _trip_count(backend_config: bytes) -> int | None:
    """XLA notes what it found out of a loop in the loop's backend config, as JSON (jaxlib 0.10.2 to 0.12)."""
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
    """Programs repeat a few shapes over and over. An empty tuple has no leaves."""
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
        # XLA writes the bottom frame's parent as 0 (jaxlib 0.10.2 to 0.12).
        frames.append((Frame(file, function, location.line), message.parent_frame_id))
    return frames


def _numbered(items: list[_Item], number: int) -> _Item:
    """The item of a number; they count from 1."""
    if not 0 < number <= len(items):
        raise KeyError(number)
    return items[number - 1]


def _text(text: str) -> str:
    """A name as it may be shown; see `untrusted.clean`."""
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
