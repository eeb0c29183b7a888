"""Count the items in a serialized message before parsing it, to bound the memory that parsing takes.

A file with only a few bytes per message would fill memory when parsed. Compilers write no such files, so they are
rejected.
"""

from __future__ import annotations

from collections.abc import Mapping

from memprof.errors import MemprofError

# The fields of each message: {name: (number, type)}. A type that ends in `[]` is repeated; a type that is not a scalar
# is the name of a message.
Messages = Mapping[str, Mapping[str, tuple[int, str]]]
# Wire types.
_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}

# A message of two bytes takes 160 when parsed, an instruction with metadata 250. Real programs have 52 to 144 bytes per
# repeated message, so only a program made to fill memory has fewer than this.
_SMALL_BYTES = 10 << 20  # takes less than 1 GiB even then
_MIN_BYTES_PER_ITEM = 16


def check_items(data: bytes, message: str, declared: Messages) -> None:
    """Check the number of messages and strings in a serialized message.

    Args:
        message, declared: see `count_items`.

    Raises:
        MemprofError: there are more than a compiler would write in so few bytes.
    """
    most = max(len(data), _SMALL_BYTES) // _MIN_BYTES_PER_ITEM
    if count_items(data, message, declared, most=most) > most:
        raise unreadable("it has more parts than any compiled program of its size")


def unreadable(why: str) -> MemprofError:
    """Return the error of an unreadable program."""
    return MemprofError(
        f"the capture's program cannot be read ({why}); it is damaged: make the capture again with `memprof run`"
    )


def repeated(messages: Messages) -> Messages:
    """Return the declarations of repeated messages and of the messages that contain them.

    All other fields add a fixed amount to the memory of a message, or a multiple of their bytes: numbers, and device
    groups, which stay serialized (empty ones take 10 times their bytes, less than the limit). So instructions are
    counted without parsing their fields.
    """
    kept: dict[str, dict[str, tuple[int, str]]] = {}
    for name, fields in messages.items():  # a message is declared before the messages that contain it
        kept[name] = {
            field: (number, kind)
            for field, (number, kind) in fields.items()
            if kept.get(kind) or (kind.endswith("[]") and kind not in ("int64[]", "bytes[]"))
        }
    return kept


def count_items(data: bytes, message: str, messages: Messages, *, most: int) -> int:
    """Count the messages and strings in a serialized message without parsing it.

    Args:
        message: the type of `data`; `messages` are the declarations for `message_classes`. A message that declares no
            fields counts as one item.
        most: counting stops beyond this number.

    Returns:
        Their number; an arbitrary number if `data` is not such a message.
    """
    fields = {name: _kinds(declared) for name, declared in messages.items()}
    count, place, length = 0, 0, len(data)
    ends: list[tuple[int, dict[int, str]]] = []  # of the enclosing messages
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
                if fields.get(kind):
                    ends.append((end, kinds))
                    end, kinds = place + size, fields[kind]
                else:
                    place += size
            elif wire_type in _FIXED_BYTES:
                place += _FIXED_BYTES[wire_type]
            else:
                return count
    except IndexError:  # the data ends inside a number
        pass
    return count


def _kinds(fields: Mapping[str, tuple[int, str]]) -> dict[int, str]:
    """Return the type of each field of a message by its number."""
    return {number: kind.removesuffix("[]") for number, kind in fields.values()}


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it."""
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
