"""A value that holds memory, with all facts that rules may use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from msgspec import Struct

from memprof.analysis.attribution.aliases import ALIASING, AliasSets, position_of
from memprof.analysis.attribution.dataflow import Dataflow, Origin
from memprof.analysis.attribution.module_flow import ModuleFlow
from memprof.analysis.attribution.module_paths import ModulePaths
from memprof.analysis.attribution.op_names import Named
from memprof.analysis.attribution.operations import Operation
from memprof.analysis.hlo.buffer_table import Allocation, BufferTable, LogicalBuffer
from memprof.analysis.hlo.program import Instruction, Program
from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Phase
from memprof.errors import InternalError

# Operations that the compiler inserts without a name between an operation and the use of its result.
_PASSING_ON = frozenset({"copy", "transpose", "reshape", "convert"})


class Value(Struct, frozen=True, kw_only=True):
    """One value in memory.

    Attributes:
        name, opcode, custom_call_target: those of the HLO instruction that defines it.
        element: its index in that instruction's result: `()` for an array, `(1,)` for the second element of a tuple.
        op_name: JAX's name of the operation that makes the data; for a fusion, the operation at its root.
        operation: the index of that operation, for its stack trace.
        argument: the leaf, if the value lies in the memory of an argument.
        is_output, is_constant: it lies in the memory of a result, or is a constant of the program.
        is_tuple_table: it holds the pointers of a tuple, not data.
        is_for_collectives: it lies in memory that is allocated for communication between devices.
        phase: the phase that makes the value.
        computed_in: the phase that computes the data, even if `phase` only moves them.
        origin, use: sets of bits, see `dataflow.py`.
        padding_bytes: its memory beyond its elements, in bytes.
        padded: its dimensions after padding to whole tiles; empty without padding.
        group: see `aliases.py`; -1 if it is not an array.
        dies_in_forward: no operation of the backward pass runs while it is live, so that pass can use only a copy.
        is_past_differentiation: its operation has no mark of differentiation, but its inputs have one.
    """

    name: str
    opcode: str
    custom_call_target: str
    element: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    op_name: str
    operation: int
    module: str
    phase: Phase
    computed_in: Phase
    origin: int
    use: int
    group: int = -1
    is_past_differentiation: bool = False
    dies_in_forward: bool = False
    argument: ArgumentLeaf | None = None
    is_output: bool = False
    is_constant: bool = False
    is_tuple_table: bool = False
    is_for_collectives: bool = False
    padding_bytes: int = 0
    padded: tuple[int, ...] = ()


class Values:
    """Finds the value of a logical buffer, or of a whole allocation."""

    def __init__(
        self, program: Program, table: BufferTable, arguments: Mapping[int, ArgumentLeaf], modules: ModulePaths
    ) -> None:
        self._program = program
        self._table = table
        self._arguments = arguments
        self._groups = AliasSets(program, table)
        self._flow = Dataflow(program, self._groups, arguments)
        self._module_flow = ModuleFlow(program, self._groups, arguments, modules, self._flow)
        self._readers: dict[int, list[Operation]] = defaultdict(list)
        self._parameters = frozenset(program.entry.parameters)  # without the parameters of loops
        self._results = frozenset(self._groups.of_instruction(program.instructions[program.entry.root]))

    @property
    def flow(self) -> Dataflow:
        """The origins and uses of each group."""
        return self._flow

    @property
    def order(self) -> tuple[int, ...]:
        """All instructions, including fused ones, in program order."""
        return self._groups.order

    @property
    def result_groups(self) -> frozenset[int]:
        """The groups of the step's results."""
        return self._results

    def argument_of(self, group: int) -> ArgumentLeaf | None:
        """Return the argument that a group holds, if any."""
        number = self._flow.argument.get(group)
        return None if number is None else self._arguments[number]

    def maker_in(self, index: int, group: int) -> Instruction:
        """Return the operation that makes a group's data; for a fusion, the operation at its root or an earlier one."""
        instruction = self._program.instructions[index]
        number = self._groups.of_instruction(instruction).index(group)
        return self._program.instructions[self._operation(index, instruction.first_position + number)]

    def phase_of(self, instruction: Instruction) -> Phase:
        """Return the phase of an instruction's result."""
        if not instruction.shape.leaves:
            return Phase.NONE
        return self._flow.phase(self._groups.of(instruction.first_position))

    def module_of(self, instruction: Instruction) -> str:
        """Return the module of an instruction's result; empty if it has none."""
        if not instruction.shape.leaves:
            return ""
        return self._module_flow.of(self._groups.of(instruction.first_position), instruction)

    def module_of_scope(self, op_name: str) -> str:
        """Return the module with parameters that the scopes of an op name show; empty if they show none."""
        return self._module_flow.of_scope(op_name)

    def groups_read_by(self, instruction: Instruction) -> Iterator[int]:
        """Yield the groups of an instruction's operands."""
        for operand in instruction.operands:
            yield from self._groups.of_instruction(self._program.instructions[operand])

    def groups_of(self, instruction: Instruction) -> tuple[int, ...]:
        """Return the groups of the leaves of an instruction's result."""
        return self._groups.of_instruction(instruction)

    def group_of(self, buffer: LogicalBuffer) -> int | None:
        """Return the group of a logical buffer; None if it does not hold an array."""
        position = position_of(self._program.instructions[buffer.instruction], buffer.shape_index)
        return None if position is None else self._groups.of(position)

    def of_buffer(self, buffer: LogicalBuffer, *, dies_in_forward: bool = False) -> Value:
        """Return the value that a logical buffer holds."""
        allocation = self._table.allocations[buffer.allocation]
        instruction = self._program.instructions[buffer.instruction]
        position = position_of(instruction, buffer.shape_index)
        number = allocation.parameter_number
        argument = None if number is None else self._arguments[number]
        if position is None:
            return Value(
                name=instruction.name,
                opcode=instruction.opcode,
                custom_call_target=instruction.custom_call_target,
                element=buffer.shape_index,
                shape=(),
                dtype="tuple",
                op_name=instruction.op_name,
                operation=buffer.instruction,
                module="",
                phase=Phase.NONE,
                computed_in=Phase.NONE,
                origin=0,
                use=0,
                argument=argument,
                is_output=allocation.is_live_out,
                is_tuple_table=True,
            )
        group = self._groups.of(position)
        leaf = instruction.shape.leaves[position - instruction.first_position]
        operation = self._operation(buffer.instruction, position)
        op_name = self._program.instructions[operation].op_name
        return Value(
            name=instruction.name,
            opcode=instruction.opcode,
            custom_call_target=instruction.custom_call_target,
            element=leaf.shape_index,
            shape=leaf.dimensions,
            dtype=leaf.dtype,
            op_name=op_name,
            operation=operation,
            module=self._module_flow.of(group, self._program.instructions[operation]),
            phase=self._flow.phase(group),
            computed_in=self._flow.computed_in(group),
            origin=self._flow.origin[group],
            use=self._flow.use[group],
            group=group,
            dies_in_forward=dies_in_forward,
            is_past_differentiation=bool(self._flow.origin[group] & Origin.BACKWARD)
            and not self._flow.named[group] & Named.BACKWARD,
            argument=argument,
            is_output=allocation.is_live_out and number is None,
            is_constant=allocation.is_constant,
            is_for_collectives=allocation.is_for_collectives,
            padding_bytes=max(buffer.size_bytes - leaf.size_bytes, 0) if leaf.size_bytes else 0,
            padded=leaf.padded,
        )

    def of_allocation(self, allocation: Allocation) -> Value:
        """Return the value that represents a whole allocation: an argument, a result or a constant.

        Several values can share one allocation, one after another. An argument or a result represents its own memory;
        otherwise the largest value does, and ties go to the last.

        Raises:
            InternalError: the allocation holds no value.
        """
        buffers = [self._table.logical_buffers[buffer_id] for buffer_id in allocation.logical_buffers]
        if not buffers:
            raise InternalError(f"XLA's allocation {allocation.index} ({allocation.size_bytes:,} bytes) holds no value")
        if allocation.parameter_number is not None:
            parameters = [b for b in buffers if b.instruction in self._parameters]
            buffers = parameters or buffers
        elif allocation.is_live_out:
            buffers = [buffer for buffer in buffers if self._is_result(buffer)] or buffers
        return self.of_buffer(max(enumerate(buffers), key=lambda numbered: (numbered[1].size_bytes, numbered[0]))[1])

    def _is_result(self, buffer: LogicalBuffer) -> bool:
        return self.group_of(buffer) in self._results

    def _operation(self, index: int, position: int) -> int:
        """Return the instruction that makes the data at a position, with an op name if possible.

        Candidates in order: the definer at the fusion's root or an argument that was copied, then any other definer of
        the group (an accumulator is defined by an unnamed broadcast before the loop and by a named addition in it),
        then the operation that reads it, then the instruction itself.
        """
        for source in self._sources(index, position):
            instruction = self._program.instructions[source]
            makes_data = instruction.opcode not in ALIASING or source in self._parameters
            if makes_data and instruction.op_name:
                return self._moved(source)
        maker = self._named_maker(position)
        if maker is not None:
            return self._moved(maker)
        reader = self._named_reader(self._groups.of(position))
        return index if reader is None else reader

    def _named_reader(self, group: int) -> int | None:
        """Return the nearest operation with an op name that needs a value.

        The compiler expands operations (`ragged_dot`, the gradient of pooling) into several, and names only the last.
        """
        if group in self._flow.argument:
            return None
        if not self._readers:
            for operation in self._flow.operations:
                for _, read in operation.inputs:
                    self._readers[read].append(operation)
        phase = self._flow.phase(group)
        seen, reached, other = {group}, [group], None
        for read in reached:
            for operation in self._readers.get(read, ()):
                if operation.named is Named.NOTHING:
                    reached += [output for output in operation.outputs if output not in seen]
                    seen.update(operation.outputs)
                elif any(self._flow.phase(output) is phase for output in operation.outputs):
                    return operation.index
                elif other is None:
                    other = operation.index
        return other

    def _moved(self, index: int) -> int:
        """Return the operation that makes a piece of a loop's stack, instead of the one that writes it to the stack.

        Unnamed copies and conversions that the compiler inserted can lie between the two.
        """
        instruction = self._program.instructions[index]
        if instruction.opcode != "dynamic-update-slice":
            return index
        maker = self._named_maker(self._program.instructions[instruction.operands[1]].first_position)
        return index if maker is None else maker

    def _named_maker(self, position: int) -> int | None:
        """Return the last instruction with an op name that makes the data of a position's group.

        If there is none, look at the makers of the value that was copied, converted or sent.
        """
        seen = set()
        while (group := self._groups.of(position)) not in seen:
            seen.add(group)
            for definer in reversed(self._flow.definers[group]):
                if self._program.instructions[definer].op_name:
                    return definer
            for definer in self._flow.definers[group]:
                definition = self._program.instructions[definer]
                if definition.is_combined:
                    number = self._groups.of_instruction(definition).index(group) % len(definition.operands)
                    position = self._program.instructions[definition.operands[number]].first_position
                    argument = self._flow.argument.get(self._groups.of(position))
                    if argument is not None:
                        return self._program.entry.parameters[argument]
                elif definition.opcode in _PASSING_ON and definition.operands:
                    position = self._program.instructions[definition.operands[0]].first_position
        return None

    def _sources(self, index: int, position: int) -> Iterator[int]:
        """Yield the instruction and its sources, through a fusion's root and instructions that only pass data on."""
        program = self._program
        while True:
            instruction = program.instructions[index]
            leaf = position - instruction.first_position
            if instruction.opcode == "fusion":
                index = program.computations[instruction.called[0]].root
                position = program.instructions[index].first_position + leaf
            elif instruction.opcode == "tuple":
                for operand in instruction.operands:
                    num_leaves = len(program.instructions[operand].shape.leaves)
                    if leaf < num_leaves:
                        index, position = operand, program.instructions[operand].first_position + leaf
                        break
                    leaf -= num_leaves
            else:
                yield index
                if instruction.opcode not in ALIASING | {"copy"} or len(instruction.operands) != 1:
                    return
                index = instruction.operands[0]
                position = program.instructions[index].first_position
                if len(program.instructions[index].shape.leaves) != 1:
                    return
