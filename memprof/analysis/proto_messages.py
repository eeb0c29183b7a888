"""Protocol buffer classes made at run time from a declaration by field number, where no light package ships them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "int64": _Field.TYPE_INT64,
    "int32": _Field.TYPE_INT32,
    "uint32": _Field.TYPE_UINT32,
    "bool": _Field.TYPE_BOOL,
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
}


def message_classes(package: str, messages: Mapping[str, Mapping[str, tuple[int, str]]]) -> dict[str, Any]:
    """The classes of some messages, by name.

    Args:
        messages: for each message, {field name: (number, type)}. A type that ends in `[]` is repeated; one that is no
            scalar names a message.
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
