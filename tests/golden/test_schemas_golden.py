"""`docs/schema/` is made from the types of the JSON, and keeps its promise: nothing is renamed, removed or retyped.

Recording a schema again checks that promise first. A change that breaks it needs a new version of the schema: a new
name, `memprof.report/2`, in the type.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from comparisons_data import COMPARISONS
from diffs_data import DIFFS
from jsonschema import Draft202012Validator
from recorded import check_recorded
from reports_data import REPORTS

from memprof.reports.formats.json import FORMAT, indented, render_object
from memprof.reports.json.answers import schemas
from memprof.reports.json.comparison import ComparisonJson, DiffJson
from memprof.reports.json.report import ReportJson
from memprof.reports.options import RenderOptions

_FOLDER = Path(__file__).parents[2] / "docs" / "schema"
_PROMISED = {path.name.removesuffix(".schema.json"): json.loads(path.read_text()) for path in _FOLDER.iterdir()}
_MADE = schemas()

Schema = dict[str, Any]


def _resolved(schema: Schema, whole: Schema) -> tuple[Schema, Schema]:
    """A schema behind its references, and the document that it is in."""
    while "$ref" in schema:
        document, _, pointer = schema["$ref"].partition("#")
        whole = _PROMISED[document.removesuffix(".schema.json")] if document else whole
        schema = whole
        for key in filter(None, pointer.split("/")):
            schema = schema[key]
    return schema, whole


def _alternatives(schema: Schema, whole: Schema) -> Iterator[tuple[str, Schema, Schema]]:
    """Each JSON type that a schema allows, with what it says of values of that type."""
    schema, whole = _resolved(schema, whole)
    for each in schema.get("anyOf", ()):
        yield from _alternatives(each, whole)
    values = schema.get("enum", [schema["const"]] if "const" in schema else ())
    assert all(isinstance(value, str) for value in values)
    types = schema.get("type", "string" if values else [])
    for name in [types] if isinstance(types, str) else types:
        yield name, schema, whole


def _broken(promised: Schema, made: Schema, *wholes: Schema, place: str = "") -> Iterator[str]:
    """The places at which `made` allows what was not promised, or lacks what was."""
    allowed = {name: (schema, whole) for name, schema, whole in _alternatives(promised, wholes[0])}
    for name, schema, whole in _alternatives(made, wholes[1]):
        wanted = name if name in allowed or name != "integer" else "number"
        if wanted not in allowed:
            yield f"{place}: {name}"
        if wanted not in allowed or name == "null":
            continue
        old, old_whole = allowed[wanted]
        values = {name: set(each.get("enum", [each.get("const")])) for name, each in (("old", old), ("new", schema))}
        if None not in values["old"] and not values["old"] <= values["new"]:  # values may be added: a category
            yield f"{place}: its values"
        for limit in ("minimum", "minItems"):
            if limit in old and max(schema.get(limit, -1), schema.get("exclusiveMinimum", -1)) != old[limit]:
                yield f"{place}: {limit}"
        if not set(old.get("required", ())) <= set(schema.get("required", ())):
            yield f"{place}: required"
        wholes = old_whole, whole
        parts = {**old.get("properties", {}), "*": old.get("additionalProperties"), "[]": old.get("items")}
        now = {**schema.get("properties", {}), "*": schema.get("additionalProperties"), "[]": schema.get("items")}
        for key, part in parts.items():
            if isinstance(part, dict):
                where = f"{place}/{key}"
                yield from _broken(part, now[key], *wholes, place=where) if now.get(key) else [f"{where}: gone"]


def _broken_of(name: str, made: Schema) -> list[str]:
    return list(_broken(_PROMISED[name], made, _PROMISED[name], made))


def test_no_schema_is_left_of_a_document_that_is_gone() -> None:
    assert set(_PROMISED) <= set(_MADE)


@pytest.mark.parametrize("name", list(_MADE))
def test_the_types_keep_the_promise_and_the_file_has_their_descriptions(name: str) -> None:
    Draft202012Validator.check_schema(_MADE[name])
    if name in _PROMISED:
        assert _broken_of(name, _MADE[name]) == []
    check_recorded(f"{indented(_MADE[name], levels=4)}\n", _FOLDER / f"{name}.schema.json")


def _renamed(schema: Schema) -> None:
    schema["properties"]["footprint"] = schema["properties"].pop("footprint_bytes")


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (_renamed, "/footprint_bytes: gone"),
        (lambda schema: schema["required"].remove("label"), ": required"),
        (lambda schema: schema["properties"].update(label={"type": "integer"}), "/label: integer"),
        (lambda schema: schema["properties"]["label"].update(type=["string", "null"]), "/label: null"),
        (lambda schema: schema["properties"]["num_params"].update(minimum=-1), "/num_params: minimum"),
        (lambda schema: schema["properties"]["num_params"].update(type="number"), "/num_params: number"),
        (lambda schema: schema["properties"]["schema"].update(enum=["memprof.report/2"]), "/schema: its values"),
        (lambda schema: schema["properties"]["doubts"].update(items={"type": "integer"}), "/doubts/[]: integer"),
        (lambda schema: schema["properties"].update(more={"type": "string"}), None),
    ],
)
def test_a_broken_promise_is_found_and_a_new_field_is_none(change: Callable[[Schema], object], broken: str) -> None:
    made = copy.deepcopy(_MADE["report"])
    change(made["$defs"]["ReportJson"])
    assert _broken_of("report", made) == ([] if broken is None else [broken])


def test_what_is_printed_is_what_the_types_say() -> None:
    printed = [
        *((ReportJson, FORMAT.render_report(make(), RenderOptions()), 2) for make in REPORTS.values()),
        *((ComparisonJson, FORMAT.render_comparison(make(), RenderOptions()), 4) for make in COMPARISONS.values()),
        *((DiffJson, FORMAT.render_diff(make(), RenderOptions()), 2) for make in DIFFS.values()),
    ]
    for kind, text, levels in printed:
        assert render_object(msgspec.convert(json.loads(text), kind), levels=levels) == text
