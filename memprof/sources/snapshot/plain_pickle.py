"""Reader for pickles of plain values. It rejects all others, because reading must not run foreign code.

A memory snapshot holds dictionaries, lists, tuples, texts and numbers. A pickle can also call any function. So its
operations are checked against an allowlist before it is loaded, and the loader finds no function or class.

    values = load_plain(Path("snapshot.pickle").read_bytes())
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, NoReturn

_ALLOWED = frozenset(
    """
    PROTO FRAME STOP MARK MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET
    NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 FLOAT BINFLOAT
    UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES
    EMPTY_DICT DICT SETITEM SETITEMS EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
    """.split()
)
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})


class UnsafePickleError(Exception):
    """A pickle holds more than plain values, or is incomplete; the message says which."""


def load_plain(data: bytes) -> Any:
    """Return the values in a pickle.

    Raises:
        UnsafePickleError: see the class.
    """
    try:
        for operation, argument, _ in pickletools.genops(data):
            if operation.name not in _ALLOWED:
                raise UnsafePickleError(f"it has the operation {operation.name}, which plain values do not need")
            # The loader's memo is an array that grows to the highest memo number.
            if operation.name in _PUTS and int(argument or 0) > len(data):
                raise UnsafePickleError(f"its memo has the number {argument}")
        return _Loader(io.BytesIO(data)).load()
    except UnsafePickleError:
        raise
    # The loader raises errors of many types for truncated or inconsistent data.
    except (
        *(pickle.UnpicklingError, ValueError, EOFError, IndexError, KeyError, TypeError, AttributeError),
        *(OverflowError, MemoryError),
    ) as error:
        raise UnsafePickleError("it is not a pickle, or is truncated") from error


class _Loader(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise UnsafePickleError(f"it names {module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise UnsafePickleError(f"it refers to {pid}, which lies outside it")
