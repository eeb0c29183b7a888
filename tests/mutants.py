"""Captures that somebody or something has been at: the same file with one fault in it.

    for mutant in mutants(whole_file, random.Random(0), 100):
        path.write_bytes(mutant.content)

Half of the kinds are what a disk or a copy does: bytes that flip, vanish or double, in the file or in what it holds.
The other half are made on purpose: what the file holds is odd, but its digests are right.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from memprof.analysis.hlo.hlo_proto import HloProto

MANIFEST, PROGRAM, SUMS = "manifest.json", "program.hlo.pb", "SHA256SUMS"
Parts = dict[str, bytes]

_NUMBERS = (0, 1, -1, 2, 7, 2**31 - 1, 2**31, -(2**31), 2**53 + 1, 2**62, 2**63 - 1, -(2**63))
_TEXTS = (
    "", "\x1b[31m", "while", "get-tuple-element", "fusion", "tuple", "x" * 70_000, "a(" * 500, "/" * 300, "\u202e",
    "[0]" * 50,
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**63, -(2**63), 10**400, 1.5, -0.0, float("nan"), float("inf"), 1e308, "", "\x1b[2J",
    "x" * 100_000, "9" * 5000, [], {}, [[]], [None], {"": 0}, {"a": {"b": []}},
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A capture with a fault. `is_sealed`: its digests are right all the same."""

    kind: str
    content: bytes
    is_sealed: bool


def mutants(content: bytes, rng: random.Random, number: int) -> Iterator[Mutant]:
    """That many mutants of a capture, of all kinds in turn."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    kinds: tuple[tuple[str, bool, Callable[[], bytes]], ...] = (
        ("bytes of the file", False, lambda: damage(content, rng)),
        ("where the zip describes itself", False, lambda: damage(content, rng, near_end=320)),
        ("bytes of a member", False, lambda: _with_damaged_member(parts, rng)),
        ("members", False, lambda: _with_other_members(parts, rng)),
        ("a value of the manifest", False, lambda: _pack({**parts, MANIFEST: odd_json(parts[MANIFEST], rng)})),
        ("a value of the manifest", True, lambda: seal({**parts, MANIFEST: odd_json(parts[MANIFEST], rng)})),
        ("bytes of the program", True, lambda: seal({**parts, PROGRAM: damage(parts[PROGRAM], rng)})),
        ("a field of the program", True, lambda: seal({**parts, PROGRAM: odd_program(parts[PROGRAM], rng)})),
        ("fields of the program", True, lambda: seal({**parts, PROGRAM: odd_program(parts[PROGRAM], rng, 3)})),
    )
    for count in range(number):
        kind, is_sealed, make = kinds[count % len(kinds)]
        yield Mutant(kind=kind, content=make(), is_sealed=is_sealed)


def forged(content: bytes, rng: random.Random) -> bytes:
    """A capture of which one value is another, in its manifest or its trace, with digests that are right."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice([name for name in parts if name.endswith(".json")])
    return seal({**parts, name: odd_json(parts[name], rng)})


def seal(parts: Parts) -> bytes:
    """A capture file of these members with digests that are right."""
    held = {name: content for name, content in parts.items() if name != SUMS}
    digests = (f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in held.items())
    return _pack({**held, SUMS: "".join(digests).encode()})


def _pack(parts: Parts) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def damage(data: bytes, rng: random.Random, near_end: int | None = None) -> bytes:
    """Bytes that flip, vanish, double, or become nothing."""
    first = 0 if near_end is None else max(0, len(data) - near_end)
    place = rng.randrange(first, len(data))
    length = min(rng.choice([1, 1, 2, 4, 16, 200]), len(data) - place)
    before, damaged, after = data[:place], data[place : place + length], data[place + length :]
    match rng.randrange(7):
        case 0 | 1:
            damaged = bytes([damaged[0] ^ 1 << rng.randrange(8)]) + damaged[1:]
        case 2:
            damaged = bytes(length)
        case 3:
            damaged = b"\xff" * length
        case 4:
            damaged = b""
        case 5:
            damaged *= 2
        case _:
            return before
    return before + damaged + after


def _with_damaged_member(parts: Parts, rng: random.Random) -> bytes:
    name = rng.choice(list(parts))
    return _pack({**parts, name: damage(parts[name], rng)})


def _with_other_members(parts: Parts, rng: random.Random) -> bytes:
    names = list(parts)
    match rng.randrange(4):
        case 0:
            return _pack({name: parts[name] for name in names if name != rng.choice(names)})
        case 1:
            shuffled = rng.sample(names, len(names))
            return _pack({name: parts[other] for name, other in zip(names, shuffled, strict=True)})
        case 2:
            return _pack({**parts, rng.choice(["more", "../../more", "\x1b[31m"]): b"more"})
        case _:
            return _pack({**parts, rng.choice(names): b""})


def odd_json(text: bytes, rng: random.Random) -> bytes:
    """One value is another, gone, or there under another name."""
    found = json.loads(text)
    place: Any = found
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = rng.choice(keys)
        inner = place[key]
        if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.1:
            break
        place = inner
    match rng.randrange(6):
        case 0:
            del place[key]
        case 1 if isinstance(place, dict):
            place[rng.choice(["", "\x1b", "x" * 5000])] = place.pop(key)
        case 2 if isinstance(place, list):
            place.extend([inner] * rng.choice([1, 70]))
        case 3 if type(inner) is int:
            place[key] = inner + rng.choice([1, -1])
        case _:
            place[key] = rng.choice(_VALUES)
    return json.dumps(found).encode()


def odd_program(program: bytes, rng: random.Random, times: int = 1) -> bytes:
    proto = HloProto.FromString(program)
    for _ in range(times):
        _edit_message(proto, rng)
    data: bytes = proto.SerializeToString()
    return data


def _edit_message(message: Any, rng: random.Random) -> None:
    """Change one field, somewhere below a message."""
    while True:
        fields = message.DESCRIPTOR.fields if rng.random() < 0.15 else [field for field, _ in message.ListFields()]
        field = rng.choice(fields or message.DESCRIPTOR.fields)
        is_message = field.message_type is not None
        value = getattr(message, field.name)
        if field.is_repeated:
            if not is_message or not value or rng.random() < 0.15:
                _edit_list(value, field, rng)
                return
            message = rng.choice(value)
        elif not is_message:
            setattr(message, field.name, _odd_value(field, value, rng))
            return
        elif rng.random() < 0.05:
            message.ClearField(field.name)
            return
        else:
            message = value


def _edit_list(items: Any, field: Any, rng: random.Random) -> None:
    """An item more, less, twice, or in another place."""
    is_message = field.message_type is not None
    if not items:
        items.add() if is_message else items.append(_odd_value(field, 0, rng))
        return
    index = rng.randrange(len(items))
    match rng.randrange(5):
        case 0:
            del items[index]
        case 1:
            items.append(items[index])
        case 2:
            kept = list(items)
            rng.shuffle(kept)
            del items[:]
            items.extend(kept)
        case 3:
            del items[:]
        case _ if is_message:
            items[index].CopyFrom(rng.choice(items))
        case _:
            items[index] = _odd_value(field, items[index], rng)


def _odd_value(field: Any, value: Any, rng: random.Random) -> Any:
    if field.cpp_type == field.CPPTYPE_BOOL:
        return not value
    if field.type == field.TYPE_STRING:
        return rng.choice(_TEXTS)
    if field.type == field.TYPE_BYTES:
        return rng.choice([b"", b"\xff", b'"known_trip_count":{"n":"' + b"9" * 5000 + b'"}'])
    bits = 31 if field.cpp_type == field.CPPTYPE_INT32 else 63
    number = int(value or 0)
    odd = rng.choice([*_NUMBERS, number + 1, number - 1, rng.randrange(60)])
    return max(-(2**bits), min(2**bits - 1, odd))
