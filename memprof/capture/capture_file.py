"""The capture file, `NAME.memprof`: a zip of `manifest.json` and `program.hlo.pb`.

The manifest is versioned JSON; the program is the serialized `xla.HloProto` as XLA wrote it. Never a pickle: a capture
from somewhere else is safe to open. Reading needs no JAX.
"""

from __future__ import annotations

import dataclasses
import json
import zipfile
import zlib
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, BinaryIO, get_args, get_origin, get_type_hints

from memprof.analysis.capture import Capture
from memprof.errors import MemprofError
from memprof.files import IfTaken, write_whole

SCHEMA_NAME, SCHEMA_VERSION = "memprof.capture", 1
_MANIFEST, _PROGRAM = "manifest.json", "program.hlo.pb"


def write_capture(capture: Capture, path: Path, *, if_taken: IfTaken = IfTaken.REFUSE) -> Path:
    """Write a capture so that `path` holds all of it or is not touched.

    Args:
        if_taken: what is done where there is a file of that name.

    Returns:
        The path that was written.

    Raises:
        MemprofError: the file exists, or the folder cannot be written to.
    """
    manifest = {"schema": f"{SCHEMA_NAME}/{SCHEMA_VERSION}", **_to_json(capture)}

    def fill(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
            archive.writestr(_PROGRAM, capture.hlo_proto)

    return write_whole(path, fill, what="the capture", if_taken=if_taken)


def read_capture(path: Path) -> Capture:
    """Read a capture file.

    Raises:
        MemprofError: there is no such file, or it is no capture, damaged, or of a newer schema.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            program = archive.read(_PROGRAM)
    except FileNotFoundError as error:
        raise MemprofError(f"there is no file {path}; `memprof run` writes captures (*.memprof)") from error
    except IsADirectoryError as error:
        raise MemprofError(f"{path} is a folder; give a capture (*.memprof)") from error
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error, ValueError, RuntimeError) as error:
        # A RuntimeError is what `zipfile` says of encryption and unknown compression, and `json` of endless nesting.
        raise MemprofError(
            f"{path} is no capture, or a truncated one ({error}); make it again with `memprof run`"
        ) from error
    except OSError as error:
        raise MemprofError(f"{path} cannot be read: {error.strerror or error}") from error
    _check_schema(manifest, path)
    try:
        capture: Capture = _from_json(Capture, {**manifest, "hlo_proto": program})
    except (KeyError, TypeError, ValueError) as error:
        raise MemprofError(
            f"{path} is a damaged capture: its manifest does not fit schema {SCHEMA_VERSION} ({error!s});"
            " make it again with `memprof run`"
        ) from error
    return capture


def _check_schema(manifest: Any, path: Path) -> None:
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    name, _, number = str(schema).partition("/")
    if name != SCHEMA_NAME or not number.isdecimal():
        raise MemprofError(f"{path} is no capture: its manifest says schema {schema!r}, not '{SCHEMA_NAME}/...'")
    if int(number) > SCHEMA_VERSION:
        raise MemprofError(
            f"{path} has schema {schema}, but this memprof reads up to {SCHEMA_NAME}/{SCHEMA_VERSION};"
            " read it with a newer memprof (`pip install --upgrade jax-memprof`)"
        )


def _to_json(record: Any) -> Any:
    """Records as plain JSON values; the proto, which is not JSON, goes into the zip by itself."""
    fields = (field for field in dataclasses.fields(record) if field.name != "hlo_proto")
    return {field.name: _value_to_json(getattr(record, field.name)) for field in fields}


def _value_to_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _to_json(value)
    if isinstance(value, (tuple, list)):
        return [_value_to_json(item) for item in value]
    return dict(value) if hasattr(value, "keys") else value


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _from_json(kind: Any, value: Any) -> Any:
    """A JSON value as the type that a record's field declares.

    Raises:
        KeyError, TypeError, ValueError: it does not fit.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        # A field with a default came later: older captures lack it.
        present = [field for field in dataclasses.fields(kind) if field.name in value or _is_required(field)]
        return kind(**{field.name: _from_json(hints[field.name], value[field.name]) for field in present})
    if origin is UnionType:
        if value is None and NoneType in arguments:
            return None
        plain = [argument for argument in arguments if argument is not NoneType]
        return _from_json(type(value) if type(value) in plain else plain[0], value)
    if origin is tuple and isinstance(value, list):
        return tuple(_from_json(arguments[0], item) for item in value)
    if origin is Mapping and isinstance(value, dict):
        return {key: _from_json(arguments[1], item) for key, item in value.items()}
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is kind:  # a bool is no int
        return value
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    raise TypeError(f"{value!r} is no {getattr(kind, '__name__', kind)}")
