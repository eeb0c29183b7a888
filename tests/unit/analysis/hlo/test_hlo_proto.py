"""The numbers by which memprof reads XLA's messages, and the records that it makes of them."""

from __future__ import annotations

import importlib
import pkgutil

import msgspec

import memprof.analysis
from memprof.analysis.hlo.hlo_proto import (
    CollectiveDevices,
    HloProto,
    MemoryReport,
    ProductFields,
)

# Of xla/service/hlo.proto and xla/xla_data.proto (openxla/xla). They are a format of files: a number never changes.
NUMBERS = """
TileProto: dimensions=1
LayoutProto: minor_to_major=1 tiles=6 memory_space=8
ShapeProto: element_type=2 dimensions=3 tuple_shapes=4 layout=5
OpMetadata: op_type=1 op_name=2 source_file=3 source_line=4 stack_frame_id=15
HloInstructionProto: name=1 opcode=2 shape=3 metadata=7 literal=8 parameter_number=9 tuple_index=13 dimensions=14
    window=15 convolution_dimension_numbers=16 custom_call_target=28 dot_dimension_numbers=30 id=35
    operand_ids=36 called_computation_ids=38 backend_config=43 precision_config=51 replica_groups=49
    source_target_pairs=52 comparison_direction=63 device_list=87 iota_groups=92 mesh_groups=93
HloComputationProto: name=1 instructions=2 id=5 root_id=6 is_fusion_computation=7
InstructionSequence: instruction_ids=1
SequencesEntry: key=1 value=2
HloScheduleProto: sequences=1
FileLocation: file_name_id=1 function_name_id=2 line=3
StackFrame: file_location_id=1 parent_frame_id=2
StackFrameIndexProto: file_names=1 function_names=2 file_locations=3 stack_frames=4
DeviceAssignmentProto: replica_count=1 computation_count=2
HloModuleProto: name=1 computations=3 entry_computation_id=6 schedule=7 device_assignment=15
    stack_frame_index=17
Location: shape_index=3 instruction_id=4
LogicalBufferProto: id=1 size=2 defined_at=3 color=4
Assigned: logical_buffer_id=1 offset=2 size=3
BufferAllocationProto: index=1 size=2 is_thread_local=3 is_entry_computation_parameter=5 parameter_number=6
    maybe_live_out=7 color=8 assigned=9 parameter_shape_index=10 is_tuple=11 is_constant=12
Event: kind=1 buffer_id=2 computation_name=3 instruction_name=4 share_with_canonical_id=5
HeapSimulatorTrace: events=1 whole_module_simulation=2
BufferAssignmentProto: logical_buffers=1 buffer_allocations=3 heap_simulator_traces=4
HloProto: hlo_module=1 buffer_assignment=3
MemorySpace: total_bytes=1 color=2
MemoryReport: spaces=1
ReplicaGroup: replica_ids=1
SourceTarget: source=1 target=2
IotaGroups: num_groups=1 num_devices_per_group=2 reshape_dims=3 transpose_perm=4
DeviceList: replica_groups=1 iota_groups=2
MeshAxis: name=1 size=2
IotaIds: reshape_dims=1 transpose_perm=2
DeviceMesh: axes=1 device_ids=2 iota_ids=3
PartOfAxis: pre_size=1 size=2
AxisReference: axis=1 part=2
MeshGroups: mesh=1 axes=2
DotDimensionNumbers: lhs_contracting_dimensions=1
WindowDimension: size=1 stride=2 padding_low=3 window_dilation=5 base_dilation=6
Window: dimensions=1
ConvolutionDimensionNumbers: kernel_input_feature_dimension=3 input_spatial_dimensions=11
    output_spatial_dimensions=12
PrecisionConfig: operand_precision=1 algorithm=2
LiteralProto: s32s=4 s64s=5 u32s=6 u64s=7
"""


def test_fields_have_the_numbers_of_xla() -> None:
    expected: dict[str, dict[str, int]] = {}
    for word in NUMBERS.split():
        if word.endswith(":"):
            fields = expected.setdefault(word[:-1], {})
        else:
            name, number = word.split("=")
            fields[name] = int(number)
    pools = (HloProto, MemoryReport, *CollectiveDevices.values(), *ProductFields.values())
    declared = {
        message.name: {field.name: field.number for field in message.fields}
        for pool in pools
        for message in pool.DESCRIPTOR.file.message_types_by_name.values()
    }
    assert declared == expected


def test_records_of_a_program_are_frozen() -> None:
    structs = set()
    for module in pkgutil.walk_packages(memprof.analysis.__path__, "memprof.analysis."):
        members = vars(importlib.import_module(module.name)).values()
        structs |= {each for each in members if isinstance(each, type) and issubclass(each, msgspec.Struct)}
    assert len(structs) > 10
    changeable = {each.__name__ for each in structs if not each.__struct_config__.frozen}
    # The base class, and how `products.py` reads the JSON of library calls.
    assert changeable == {"Struct", "_Precision", "_DotNumbers", "_Gemm", "_Scores", "_Attention", "_Config"}
