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


Messages = Mapping[str, Mapping[str, tuple[int, str]]]
_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}


def message_classes(package: str, messages: Messages) -> dict[str, Any]:
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


def count_items(data: bytes, message: str, messages: Messages, *, most: int) -> int:
    """Count the messages and strings in a serialized message, without parsing it: what parsing it would take.

    Args:
        message: the type of `data`; `messages` are the declarations that `message_classes` takes.
        most: where there are more, counting ends.

    Returns:
        Their number; of data that is no such message, some number.
    """
    fields = {
        name: {number: kind.removesuffix("[]") for number, kind in declared.values()}
        for name, declared in messages.items()
    }
    count, place, length = 0, 0, len(data)
    ends: list[tuple[int, dict[int, str]]] = []  # of the messages around
    end, kinds = length, fields[message]
    try:
        while count <= most:
            while place >= end:
                if not ends:
                    return count
                end, kinds = ends.pop()
            tag = data[place]
            place += 1
            if tag > 0x7F:
                tag, place = _varint(data, place - 1)
            wire_type = tag & 7
            if wire_type == _VARINT:
                while data[place] > 0x7F:
                    place += 1
                place += 1
            elif wire_type == _LENGTH_DELIMITED:
                size = data[place]
                place += 1
                if size > 0x7F:
                    size, place = _varint(data, place - 1)
                kind = kinds.get(tag >> 3)
                if kind is None:
                    place += size
                    continue
                count += 1
                if kind in fields:
                    ends.append((end, kinds))
                    end, kinds = place + size, fields[kind]
                else:
                    place += size
            elif wire_type in _FIXED_BYTES:
                place += _FIXED_BYTES[wire_type]
            else:
                return count
    except IndexError:  # it ends within a number
        pass
    return count


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """The number at a place, and the place after it."""
    value = data[place]
    place += 1
    if value < 0x80:
        return value, place
    value &= 0x7F
    for shift in range(7, 70, 7):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return value, place
