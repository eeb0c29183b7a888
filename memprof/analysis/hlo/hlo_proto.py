"""The part of XLA's `hlo.proto` that memprof reads, declared by field number.

No light package ships Python classes for `xla/service/hlo.proto` and `xla/xla_data.proto`. Protocol buffers skip the
fields that a reader does not declare, so the few messages below parse any `xla.HloProto`, and protobuf's C parser does
the work. Field names and numbers are those of openxla/xla; they have been stable for years, and the integration tests
read a proto of each supported jaxlib.

    parse_proto(data).hlo_module.computations[0].name

Shapes stay serialized. A program of 28,000 instructions has 100 distinct shapes (GPT-2 small), and parsing the shape of
each instruction would take longer than parsing everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from memprof.analysis.hlo.item_count import Messages, check_items, repeated, unreadable
from memprof.errors import MemprofError

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "int64": _Field.TYPE_INT64,
    "int32": _Field.TYPE_INT32,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
    "bool": _Field.TYPE_BOOL,
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
}

_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "TileProto": {"dimensions": (1, "int64[]")},
    "LayoutProto": {"minor_to_major": (1, "int64[]"), "tiles": (6, "TileProto[]"), "memory_space": (8, "int64")},
    "ShapeProto": {
        "element_type": (2, "int32"),
        "dimensions": (3, "int64[]"),
        "tuple_shapes": (4, "ShapeProto[]"),
        "layout": (5, "LayoutProto"),
    },
    "OpMetadata": {
        "op_type": (1, "string"),
        "op_name": (2, "string"),
        "source_file": (3, "string"),
        "source_line": (4, "int32"),
        "stack_frame_id": (15, "int32"),
    },
    "HloInstructionProto": {
        "name": (1, "string"),
        "opcode": (2, "string"),
        "shape": (3, "bytes"),  # a ShapeProto: see `parse_shape`
        "metadata": (7, "OpMetadata"),
        "literal": (8, "bytes"),  # a LiteralProto: see `trip_counts.py`
        "parameter_number": (9, "int64"),
        "tuple_index": (13, "int64"),
        "dimensions": (14, "int64[]"),
        # The contracted dimensions of a dot or a convolution: see `products.py`.
        "window": (15, "bytes"),
        "convolution_dimension_numbers": (16, "bytes"),
        "custom_call_target": (28, "string"),
        "dot_dimension_numbers": (30, "bytes"),
        "id": (35, "int64"),
        "operand_ids": (36, "int64[]"),
        "called_computation_ids": (38, "int64[]"),
        "backend_config": (43, "bytes"),
        "precision_config": (51, "bytes"),
        "comparison_direction": (63, "string"),
        # The devices that a collective connects, in one of five forms: see `replica_groups.py`.
        "replica_groups": (49, "bytes[]"),
        "source_target_pairs": (52, "bytes[]"),
        "device_list": (87, "bytes"),
        "iota_groups": (92, "bytes"),
        "mesh_groups": (93, "bytes"),
    },
    "HloComputationProto": {
        "name": (1, "string"),
        "instructions": (2, "HloInstructionProto[]"),
        "id": (5, "int64"),
        "root_id": (6, "int64"),
        "is_fusion_computation": (7, "bool"),
    },
    "InstructionSequence": {"instruction_ids": (1, "int64[]")},
    # A protobuf map is a repeated message of key and value.
    "SequencesEntry": {"key": (1, "int64"), "value": (2, "InstructionSequence")},
    "HloScheduleProto": {"sequences": (1, "SequencesEntry[]")},
    "FileLocation": {
        "file_name_id": (1, "int32"),
        "function_name_id": (2, "int32"),
        "line": (3, "int32"),
    },
    "StackFrame": {"file_location_id": (1, "int32"), "parent_frame_id": (2, "int32")},
    "StackFrameIndexProto": {
        "file_names": (1, "string[]"),
        "function_names": (2, "string[]"),
        "file_locations": (3, "FileLocation[]"),
        "stack_frames": (4, "StackFrame[]"),
    },
    "DeviceAssignmentProto": {"replica_count": (1, "int32"), "computation_count": (2, "int32")},
    "HloModuleProto": {
        "name": (1, "string"),
        "computations": (3, "HloComputationProto[]"),
        "entry_computation_id": (6, "int64"),
        "schedule": (7, "HloScheduleProto"),
        "device_assignment": (15, "DeviceAssignmentProto"),
        "stack_frame_index": (17, "StackFrameIndexProto"),
    },
    "Location": {"shape_index": (3, "int64[]"), "instruction_id": (4, "int64")},
    "LogicalBufferProto": {
        "id": (1, "int64"),
        "size": (2, "int64"),
        "defined_at": (3, "Location"),
        "color": (4, "int64"),
    },
    "Assigned": {"logical_buffer_id": (1, "int64"), "offset": (2, "int64"), "size": (3, "int64")},
    "BufferAllocationProto": {
        "index": (1, "int64"),
        "size": (2, "int64"),
        "is_thread_local": (3, "bool"),
        "is_entry_computation_parameter": (5, "bool"),
        "parameter_number": (6, "int64"),
        "maybe_live_out": (7, "bool"),
        "color": (8, "int64"),
        "assigned": (9, "Assigned[]"),
        "parameter_shape_index": (10, "int64[]"),
        "is_tuple": (11, "bool"),
        "is_constant": (12, "bool"),
    },
    "Event": {
        "kind": (1, "int32"),
        "buffer_id": (2, "int64"),
        "computation_name": (3, "string"),
        "instruction_name": (4, "string"),
        "share_with_canonical_id": (5, "int64"),
    },
    "HeapSimulatorTrace": {"events": (1, "Event[]"), "whole_module_simulation": (2, "bool")},
    "BufferAssignmentProto": {
        "logical_buffers": (1, "LogicalBufferProto[]"),
        "buffer_allocations": (3, "BufferAllocationProto[]"),
        "heap_simulator_traces": (4, "HeapSimulatorTrace[]"),
    },
    "HloProto": {"hlo_module": (1, "HloModuleProto"), "buffer_assignment": (3, "BufferAssignmentProto")},
}

# xla/xla_data.proto, PrimitiveType, in XLA's own short names.
PRIMITIVE_TYPES: dict[int, str] = dict(
    enumerate(
        "invalid pred s8 s16 s32 s64 u8 u16 u32 u64 f16 f32 f64 tuple opaque c64 bf16 token c128 f8e5m2 f8e4m3fn s4 u4"
        " f8e4m3b11fnuz f8e5m2fnuz f8e4m3fnuz s2 u2 f8e4m3 f8e3m4 s1 u1 f4e2m1fn f8e8m0fnu".split()
    )
)


def message_classes(package: str, messages: Messages) -> dict[str, Any]:
    """Return the classes of messages by name.

    Args:
        messages: their declarations.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        for field_name, (number, type_name) in fields.items():
            scalar = type_name.removesuffix("[]")
            field = message.field.add(name=field_name, number=number)
            field.label = _Field.LABEL_REPEATED if type_name.endswith("[]") else _Field.LABEL_OPTIONAL
            if scalar in _SCALARS:
                field.type = _SCALARS[scalar]
            else:
                field.type = _Field.TYPE_MESSAGE
                field.type_name = f".{package}.{scalar}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


# The memory report that XLA dumps beside a plan: text and these numbers.
_REPORT_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "MemorySpace": {"total_bytes": (1, "int64"), "color": (2, "int64")},
    "MemoryReport": {"spaces": (1, "MemorySpace[]")},
}

# The fields of a collective that name the devices it connects.
_DEVICE_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "ReplicaGroup": {"replica_ids": (1, "int64[]")},
    "SourceTarget": {"source": (1, "int64"), "target": (2, "int64")},
    "IotaGroups": {
        "num_groups": (1, "int64"),
        "num_devices_per_group": (2, "int64"),
        "reshape_dims": (3, "int64[]"),
        "transpose_perm": (4, "int32[]"),
    },
    "DeviceList": {"replica_groups": (1, "ReplicaGroup[]"), "iota_groups": (2, "IotaGroups")},
    "MeshAxis": {"name": (1, "string"), "size": (2, "int64")},
    "IotaIds": {"reshape_dims": (1, "int64[]"), "transpose_perm": (2, "int32[]")},
    "DeviceMesh": {"axes": (1, "MeshAxis[]"), "device_ids": (2, "int64[]"), "iota_ids": (3, "IotaIds")},
    "PartOfAxis": {"pre_size": (1, "int64"), "size": (2, "int64")},
    "AxisReference": {"axis": (1, "int64"), "part": (2, "PartOfAxis")},
    "MeshGroups": {"mesh": (1, "DeviceMesh"), "axes": (2, "AxisReference[]")},
}

# The fields of a dot or a convolution.
_PRODUCT_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "DotDimensionNumbers": {"lhs_contracting_dimensions": (1, "int64[]")},
    "WindowDimension": {
        "size": (1, "int64"),
        "stride": (2, "int64"),
        "padding_low": (3, "int64"),
        "window_dilation": (5, "int64"),
        "base_dilation": (6, "int64"),
    },
    "Window": {"dimensions": (1, "WindowDimension[]")},
    "ConvolutionDimensionNumbers": {
        "kernel_input_feature_dimension": (3, "int64"),
        "input_spatial_dimensions": (11, "int64[]"),
        "output_spatial_dimensions": (12, "int64[]"),
    },
    "PrecisionConfig": {"operand_precision": (1, "int32[]"), "algorithm": (2, "int32")},
}

# The integers of a constant.
_LITERAL_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "LiteralProto": {"s32s": (4, "int32[]"), "s64s": (5, "int64[]"), "u32s": (6, "uint32[]"), "u64s": (7, "uint64[]")},
}

_CLASSES = message_classes(
    "memprof.xla", {**_MESSAGES, **_REPORT_MESSAGES, **_DEVICE_MESSAGES, **_PRODUCT_MESSAGES, **_LITERAL_MESSAGES}
)
# The classes are made at run time, so type checkers do not know their fields; `program.py` and `buffer_table.py`
# convert them into records immediately.
HloProto: Any = _CLASSES["HloProto"]
ShapeProto: Any = _CLASSES["ShapeProto"]
CollectiveDevices: Mapping[str, Any] = {name: _CLASSES[name] for name in _DEVICE_MESSAGES}
ProductFields: Mapping[str, Any] = {name: _CLASSES[name] for name in _PRODUCT_MESSAGES}
MemoryReport: Any = _CLASSES["MemoryReport"]
Literal: Any = _CLASSES["LiteralProto"]


_REPEATED = repeated(_MESSAGES)


def parse_memory_report(data: bytes) -> dict[int, int]:
    """Return the bytes of each memory space (0: the device's main memory) from XLA's memory report.

    Raises:
        MemprofError: it cannot be read.
    """
    try:
        report = MemoryReport.FromString(data)
    except DecodeError as error:
        raise MemprofError(f"XLA's memory report of a program cannot be read ({error})") from error
    return {space.color: space.total_bytes for space in report.spaces}


def parse_proto(data: bytes) -> Any:
    """Parse a serialized `xla.HloProto`.

    Raises:
        MemprofError: it is not an `xla.HloProto`, or holds more messages than a compiler would write.
    """
    return _parse(data, HloProto)


def parse_shape(data: bytes) -> Any:
    """Parse the shape of an instruction.

    Raises:
        MemprofError: see `parse_proto`.
    """
    return _parse(data, ShapeProto)


def _parse(data: bytes, message: Any) -> Any:
    check_items(data, message.DESCRIPTOR.name, _REPEATED)
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise unreadable(str(error)) from error
