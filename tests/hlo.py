"""Programs by hand: HLO of a few instructions, with a buffer assignment and a heap trace that fit together.

    step = Step()
    w = step.argument("params['w']", Role.PARAMS, f32(4))
    x = step.argument("x", Role.BATCH, f32(4))
    h = step.op("h", "multiply", f32(4), [w, x], FORWARD)
    dw = step.op("dw", "multiply", f32(4), [h, x], BACKWARD)
    step.result(step.op("new_w", "subtract", f32(4), [w, dw], PLAIN))

    categories(step)         # what the rules say of every buffer: {"h": activations, "dw": gradients, ...}
    analyze(step.capture())  # the whole analysis

Instructions stand in the order in which they are written. Unless a test says otherwise, every instruction that XLA
gives memory gets a place of its own in the temp block and keeps it to the end of the program (`free` ends it sooner);
arguments, constants and results get allocations of their own. What a test wants damaged or odd it changes in the proto
(`step.proto()`) or in the capture. The compiler's totals are summed up here from the layout, not by memprof.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hlo_nodes import Computation, Node, Shape, serialized_shape

from memprof.analysis.attribution.module_paths import ModulePaths
from memprof.analysis.attribution.rules import RULES, Rule, attribute
from memprof.analysis.attribution.values import Value, Values
from memprof.analysis.hlo.buffer_table import EventKind, decode_buffer_table
from memprof.analysis.hlo.hlo_proto import CollectiveDevices, HloProto, ProductFields, parse_proto
from memprof.analysis.hlo.program import Program
from memprof.analysis.hlo.program_decoding import decode_program
from memprof.analysis.records.capture import ArgumentLeaf, Capture, CompilerTotals, Target, Timings, Toolchain
from memprof.analysis.records.categories import Category, Role

_JAX_DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "bf16": "bfloat16",
    "s8": "int8",
    "s32": "int32",
    "u32": "uint32",
    "u8": "uint8",
    "pred": "bool",
}
_RUNS_COMPUTATIONS = frozenset({"while", "conditional", "call", "async-start"})


@dataclass(slots=True)
class _Allocation:
    """One allocation while it is laid out; `buffers` are (logical buffer id, offset, bytes)."""

    size_bytes: int = 0
    argument: int | None = None
    is_constant: bool = False
    is_output: bool = False
    buffers: list[tuple[int, int, int]] = field(default_factory=list)


class Step(Computation):
    """A whole program: its entry computation, and what belongs to the module."""

    def __init__(self) -> None:
        self._last_id = 0
        super().__init__(self, "main")
        self._computations: list[Computation] = []
        self._arguments: list[ArgumentLeaf] = []
        self._outputs: list[Node] = []
        self._frees: dict[Node, list[Node]] = {}
        self._frames: list[tuple[str, str, int, int]] = []

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def argument(self, path: str, role: Role, shape: Shape, *, donated: bool = False) -> Node:
        """An argument of the step: a parameter of the program called by its path in the argument tree."""
        leaf = ArgumentLeaf(
            path=path,
            role=role,
            shape=shape.dimensions,
            dtype=_JAX_DTYPES[shape.dtype],
            size_bytes=shape.size_bytes,
            donated=donated,
            parameter_number=len(self._arguments),
        )
        self._arguments.append(leaf)
        return self.parameter(shape, path)

    def computation(self, name: str, *, fused: bool = False) -> Computation:
        """Another computation, to be called. Instructions of a fused one have no memory."""
        self._computations.append(Computation(self, name, fused=fused))
        return self._computations[-1]

    def frame(self, file: str, line: int, *, function: str = "f", caller: int = 0) -> int:
        """A stack frame, called from the frame `caller`; returns its number."""
        self._frames.append((file, function, line, caller))
        return len(self._frames)

    def result(self, *nodes: Node) -> None:
        """The results of the step. Those with memory of their own become outputs."""
        for node in nodes:
            self.lives_out(node)
        if len(nodes) > 1 or nodes[0] is not self.root:
            self.tuple(*nodes)

    def lives_out(self, node: Node) -> None:
        """Put a value, and what shares its memory, into the memory of a result."""
        if node.memory.buffers() and node.memory.opcode != "constant":
            self._outputs.append(node.memory)

    def free(self, *nodes: Node, after: Node) -> None:
        """Let values die after the instruction `after` has got its memory."""
        self._frees.setdefault(after, []).extend(nodes)

    def proto(self) -> Any:
        """The program and its buffer assignment, as an `HloProto` message."""
        return _Layout(self).proto

    def capture(self) -> Capture:
        layout = _Layout(self)
        return capture_of(layout.proto, self._arguments, layout.totals)

    def _schedule(self, computation: Computation) -> Iterator[Node]:
        """The instructions that run outside fusions, in order."""
        for node in computation.nodes:
            if node.opcode in _RUNS_COMPUTATIONS:
                for called in node.called:
                    yield from self._schedule(called)
            yield node


class _Layout:
    """The proto of a step, and its totals."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self.proto = HloProto()
        self._write_module()
        self._allocations = [
            _Allocation(leaf.size_bytes, argument=leaf.parameter_number, is_output=leaf.donated)
            for leaf in step._arguments
        ]
        self._temp = _Allocation()
        self._places: dict[Node, tuple[_Allocation, int]] = {}  # where the first buffer of an instruction lies
        self._buffers: dict[Node, list[tuple[int, int]]] = {}  # logical buffer ids and bytes, of what the trace tells
        self._place_buffers()
        peak_bytes = self._write_trace()
        self._write_allocations()
        self.totals = self._sum_up(peak_bytes)

    def _write_module(self) -> None:
        module, step = self.proto.hlo_module, self._step
        module.name = "jit_step"
        for number, computation in enumerate([step, *step._computations]):
            message = module.computations.add(
                name=computation.name,
                id=number + 1,
                root_id=computation.root.id,
                is_fusion_computation=computation.fused,
            )
            for node in computation.nodes:
                self._write_instruction(message.instructions.add(), node)
        module.entry_computation_id = 1
        index = module.stack_frame_index
        for number, (file, function, line, caller) in enumerate(step._frames, start=1):
            index.file_names.append(file)
            index.function_names.append(function)
            index.file_locations.add(file_name_id=number, function_name_id=number, line=line)
            index.stack_frames.add(file_location_id=number, parent_frame_id=caller)

    def _write_instruction(self, message: Any, node: Node) -> None:
        message.name, message.opcode, message.id = node.name, node.opcode, node.id
        message.operand_ids.extend(operand.id for operand in node.operands)
        message.called_computation_ids.extend(2 + self._step._computations.index(called) for called in node.called)
        message.parameter_number = node.number if node.opcode == "parameter" else 0
        message.tuple_index = node.number if node.opcode == "get-tuple-element" else 0
        message.custom_call_target = node.target
        message.metadata.op_name = node.op_name
        message.metadata.stack_frame_id = node.frame
        message.shape = serialized_shape(node.shape)
        if node.opcode == "while" and node.number:
            message.backend_config = b'{"known_trip_count":{"n":"%d"}}' % node.number
        if node.contracting:
            numbers = ProductFields["DotDimensionNumbers"](lhs_contracting_dimensions=node.contracting)
            message.dot_dimension_numbers = numbers.SerializeToString()
        for name, value in node.fields.items():
            setattr(message, name, value)
        for group in node.groups:
            if node.opcode.startswith("collective-permute"):
                pair = CollectiveDevices["SourceTarget"](source=group[0], target=group[1])
                message.source_target_pairs.append(pair.SerializeToString())
            else:
                listed = CollectiveDevices["ReplicaGroup"](replica_ids=group)
                message.replica_groups.append(listed.SerializeToString())

    def _place_buffers(self) -> None:
        logical_buffers = self.proto.buffer_assignment.logical_buffers
        entry_parameters = [node for node in self._step.nodes if node.opcode == "parameter"]
        for node in self._step._schedule(self._step):
            if node in entry_parameters:
                allocation, offset = self._allocations[node.number], 0
                buffers = [((), node.shape)]
            else:
                buffers = node.buffers()
                if not buffers:
                    continue
                allocation, offset = self._place(node)
            self._places[node] = (allocation, offset)
            for shape_index, shape in buffers:
                number, size_bytes = len(logical_buffers) + 1, shape.size_bytes
                message = logical_buffers.add(id=number, size=size_bytes)
                message.defined_at.instruction_id = node.id
                message.defined_at.shape_index.extend(shape_index)
                allocation.buffers.append((number, offset, size_bytes))
                offset += size_bytes
                allocation.size_bytes = max(allocation.size_bytes, offset)
                if allocation is self._temp and shape.dtype != "tuple":
                    self._buffers.setdefault(node, []).append((number, size_bytes))

    def _place(self, node: Node) -> tuple[_Allocation, int]:
        """Where the buffers of an instruction start."""
        if node.shares is not None:
            return self._places[node.shares]
        if node.opcode == "constant":
            self._allocations.append(_Allocation(is_constant=True))
        elif node in self._step._outputs:
            self._allocations.append(_Allocation(is_output=True))
        else:
            return self._temp, self._temp.size_bytes
        return self._allocations[-1], 0

    def _write_trace(self) -> int:
        """Write what comes alive and dies in the temp block, in the order of the program; returns the highest sum."""
        if not self._buffers:
            return 0
        events = self.proto.buffer_assignment.heap_simulator_traces.add().events
        live: list[Node] = []
        peak_bytes = 0
        for node in self._step._schedule(self._step):
            if node in self._buffers:
                live.append(node)
                for number, (buffer_id, _) in enumerate(self._buffers[node]):
                    event = events.add(kind=EventKind.ALLOC, buffer_id=buffer_id, instruction_name=node.name)
                    if node.memory is not node:
                        event.kind = EventKind.SHARE_WITH
                        event.share_with_canonical_id = self._buffers[node.memory][number][0]
                owners = {owner.memory for owner in live}
                peak_bytes = max(peak_bytes, sum(size for owner in owners for _, size in self._buffers[owner]))
            for dead in self._step._frees.get(node, ()):
                live.remove(dead)
                self._write_death(events, dead)
        for node in reversed(live):
            self._write_death(events, node)
        return peak_bytes

    def _write_death(self, events: Any, node: Node) -> None:
        for buffer_id, _ in self._buffers[node]:
            events.add(kind=EventKind.FREE, buffer_id=buffer_id, instruction_name=node.name)

    def _write_allocations(self) -> None:
        for index, allocation in enumerate([*self._allocations, *([self._temp] if self._temp.buffers else [])]):
            message = self.proto.buffer_assignment.buffer_allocations.add(
                index=index,
                size=allocation.size_bytes,
                is_entry_computation_parameter=allocation.argument is not None,
                parameter_number=allocation.argument or 0,
                is_constant=allocation.is_constant,
                maybe_live_out=allocation.is_output,
            )
            for number, offset, size_bytes in allocation.buffers:
                message.assigned.add(logical_buffer_id=number, offset=offset, size=size_bytes)

    def _sum_up(self, temp_peak_bytes: int) -> CompilerTotals:
        outside = sum(allocation.size_bytes for allocation in self._allocations)
        donated = sum(leaf.size_bytes for leaf in self._step._arguments if leaf.donated)
        return CompilerTotals(
            argument_bytes=sum(leaf.size_bytes for leaf in self._step._arguments),
            output_bytes=sum(allocation.size_bytes for allocation in self._allocations if allocation.is_output),
            alias_bytes=donated,
            temp_bytes=self._temp.size_bytes,
            peak_memory_bytes=outside + temp_peak_bytes,
            total_allocation_bytes=outside + self._temp.size_bytes,
        )


def capture_of(proto: Any, arguments: Iterable[ArgumentLeaf], totals: CompilerTotals) -> Capture:
    """A capture of the program `proto`."""
    return Capture(
        label="net baseline",
        workload="net",
        techniques=("baseline",),
        config={"width": 4, "rate": 0.5, "name": "tiny", "causal": True, "limit": None},
        target=Target(
            name="h100-80gb",
            description="NVIDIA H100 80GB HBM3",
            platform="cuda",
            memory_bytes=84929347584,
            compute_capability="9.0",
            reason="asked for",
        ),
        toolchain=Toolchain(
            memprof="0.1.0",
            python="3.12.3",
            jax="0.12.0",
            jaxlib="0.12.0",
            cuda_plugin=None,
            flax="0.13.0",
            optax=None,
            xla_flags="",
        ),
        compiler=totals,
        arguments=tuple(arguments),
        flops=1000,
        recomputed_flops=0,
        timings=Timings(lower_seconds=0.25, compile_seconds=1.5),
        hlo_proto=proto.SerializeToString(),
    )


def program_of(proto: Any) -> Program:
    """The program of an `HloProto` message, as it is read from a file."""
    return decode_program(parse_proto(proto.SerializeToString()))


def values(step: Step, proto: Any = None) -> dict[str, Value]:
    """What the analysis knows of every buffer: by instruction, `name{1}` for the element 1 of a tuple.

    Args:
        proto: the message of the step, if it was changed.
    """
    proto, arguments = proto or step.proto(), step._arguments
    program = program_of(proto)
    table = decode_buffer_table(proto, program)
    modules = ModulePaths(tuple(leaf.path for leaf in arguments if leaf.role is Role.PARAMS))
    flow = Values(program, table, dict(enumerate(arguments)), modules)
    found = {}
    for buffer in table.logical_buffers.values():
        value = flow.of_buffer(buffer)
        element = f"{{{','.join(map(str, value.element))}}}" if value.element else ""
        found[value.name + element] = value
    return found


def categories(step: Step, rules: tuple[Rule, ...] = RULES) -> dict[str, Category]:
    """What the rules say of every buffer; names as in `values`."""
    return {name: attribute(value, rules).category for name, value in values(step).items()}
