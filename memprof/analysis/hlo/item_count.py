"""How much there is in a serialized message, counted before it is parsed: what parsing it would take.

A file of a few bytes to a message would fill the memory when it is parsed. No compiler writes one, so it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from memprof.errors import MemprofError

# Of each message its fields: {name: (number, type)}. A type that ends in `[]` is repeated; one that is no scalar names
# a message.
Messages = Mapping[str, Mapping[str, tuple[int, str]]]
# Wire types.
_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}

# A message of two bytes takes 160 when it is parsed, an instruction with metadata 250. In real programs there are 52
# to 144 bytes to each message of which there can be any number, so only a program that was made to fill memory comes
# below this.
_SMALL_BYTES = 10 << 20  # what takes less than 1 GiB even so
_MIN_BYTES_PER_ITEM = 16
_TOO_MANY = "it has more parts than any compiled program of its size"


def check_items(data: bytes, message: str, declared: Messages) -> None:
    """Check how many messages and strings there are in a serialized message.

    Args:
        message, declared: see `count_items`.

    Raises:
        MemprofError: a compiler does not make as many of as few bytes.
    """
    if len(data) > _SMALL_BYTES:
        check_count(count_items(data, message, declared, most=len(data) // _MIN_BYTES_PER_ITEM), len(data))


def check_count(num_items: int, num_bytes: int) -> None:
    """Check how many messages were found in serialized ones.

    Raises:
        MemprofError: see `check_items`.
    """
    if num_items > max(num_bytes, _SMALL_BYTES) // _MIN_BYTES_PER_ITEM:
        raise unreadable(_TOO_MANY)


def unreadable(why: str) -> MemprofError:
    """The error of a program that cannot be read."""
    return MemprofError(
        f"the capture's program cannot be read ({why}); it is damaged: make the capture again with `memprof run`"
    )


def repeated(messages: Messages) -> Messages:
    """Of the declarations those of which a message can hold any number, and those of the messages around them.

    Whatever else is in a message adds a fixed amount to what it takes, or a multiple of its bytes: numbers, and the
    groups of devices, which are left serialized (empty ones take 10 times their bytes, less than what is let through).
    So instructions are counted without looking into them.
    """
    kept: dict[str, dict[str, tuple[int, str]]] = {}
    for name, fields in messages.items():  # a message is declared before those that hold it
        kept[name] = {
            field: (number, kind)
            for field, (number, kind) in fields.items()
            if kept.get(kind) or (kind.endswith("[]") and kind not in ("int64[]", "bytes[]"))
        }
    return kept


def count_items(data: bytes, message: str, messages: Messages, *, most: int) -> int:
    """Count the messages and strings in a serialized message, without parsing it: what parsing it would take.

    Args:
        message: the type of `data`; `messages` are the declarations that `message_classes` takes. A message that
            declares nothing is counted, and not looked into.
        most: where there are more, counting ends.

    Returns:
        Their number; of data that is no such message, some number.
    """
    fields = {name: _kinds(declared) for name, declared in messages.items()}
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
                if fields.get(kind):
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


def _kinds(fields: Mapping[str, tuple[int, str]]) -> dict[int, str]:
    """What each field of a message holds, by its number."""
    return {number: kind.removesuffix("[]") for number, kind in fields.values()}


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
