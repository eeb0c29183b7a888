"""The records that rooms exchange are values: nobody changes them, and their fields are given by name."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator

import msgspec

import memprof.analysis
import memprof.reports
import memprof.studies

# The state of a reader, a simulation or a memory of calls; a counter of compiles.
_MUTABLE = {"Compiler", "_Chunk", "_Block", "_Pool", "_Message", "_Reader", "_BufferList", "_PoolDump"}
# Made thousands of times or in tables, where the position says what a field is.
_POSITIONAL = {
    *("ScopeMatch", "Mirror", "SourcePlace", "Shape", "Frame", "StackFrame", "TraceEvent"),
    *("_Chunk", "_Block", "_Pool", "_Work", "_Needs", "_Form", "_Message", "_Reader", "_BufferList", "_PoolDump"),
    "_Change",
}


# Of msgspec: what is read from a compiler's JSON; what a program has thousands of.
_READ = {"_Attention", "_Config", "_DotNumbers", "_Gemm", "_Precision", "_Scores"}
_MANY = {
    *("Arithmetic", "Attention", "Convolution", "Dot", "Event", "Instruction", "LiveChange", "LogicalBuffer"),
    *("Operation", "ResultLeaf", "Step", "WindowDimension", "_Piece"),
}


def _records(is_record: Callable[[type], bool]) -> Iterator[type]:
    for room in (memprof.analysis, memprof.studies, memprof.reports):
        for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            for value in vars(importlib.import_module(found.name)).values():
                if inspect.isclass(value) and value.__module__ == found.name and is_record(value):
                    yield value


def test_records_are_frozen_slotted_and_made_by_name() -> None:
    records = list(_records(dataclasses.is_dataclass))
    assert len(records) > 100
    assert [each.__name__ for each in records if "__slots__" not in vars(each)] == []
    mutable = {each.__name__ for each in records if each.__setattr__ is object.__setattr__}
    assert mutable == _MUTABLE
    positional = {each.__name__ for each in records if not all(field.kw_only for field in dataclasses.fields(each))}
    assert positional == _POSITIONAL


def test_structs_are_frozen_and_made_by_name() -> None:
    structs = list(_records(lambda value: issubclass(value, msgspec.Struct)))
    assert len(structs) > 80
    assert {each.__name__ for each in structs if not each.__struct_config__.frozen} == _READ
    positional = {
        each.__name__
        for each in structs
        if any(field.kind is not field.KEYWORD_ONLY for field in inspect.signature(each).parameters.values())
    }
    assert positional == _READ | _MANY
