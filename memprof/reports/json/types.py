"""What the records of `--format json` are made of: the types of their fields, and how a record is filled."""

# Without `from __future__ import annotations`: from texts msgspec makes these types in three times the time.

from collections.abc import Mapping
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.pool import Answer
from memprof.untrusted import convert

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
_Record = TypeVar("_Record", bound=Struct)


def about(text: str) -> Meta:
    """What the schema says of a field."""
    return Meta(description=text)


def _of_all_categories(minimum: Mapping[str, int]) -> Meta:
    amounts = {
        each.value: {"type": "integer", "description": f"{each.meaning[0].upper()}{each.meaning[1:]}.", **minimum}
        for each in Category
    }
    return Meta(extra_json_schema={"required": list(amounts), "properties": amounts})


Size = Annotated[int, Meta(ge=0)]
Shape = Annotated[tuple[Size, ...], about("Length of each axis; empty for a scalar.")]
Sums = Annotated[dict[str, Size], about("The empty key holds all others.")]
PhaseSums = Annotated[dict[Phase, Size], Meta(extra_json_schema={"propertyNames": {"enum": sorted(map(str, Phase))}})]
CategorySizes = Annotated[dict[Category, Size], _of_all_categories({"minimum": 0})]
CategoryChanges = Annotated[dict[Category, int], _of_all_categories({})]
Number = Annotated[float | str, about("A text if JSON has no such number: infinities and NaN.")]


class VerdictJson(Struct, frozen=True, kw_only=True):
    """Whether a step fits the memory pool that JAX has on its device."""

    answer: Annotated[Answer, about("fits_with: it fits once XLA_CLIENT_MEM_FRACTION is raised to mem_fraction.")]
    pool_bytes: Annotated[Size | None, about("Size of the pool; null if the device's memory is unknown.")]
    mem_fraction: Annotated[float | None, about("The smallest fraction that fits, for fits_with; else null.")]
    short_bytes: Annotated[Size, about("Number of bytes that the pool lacks.")]


class PressureJson(Struct, frozen=True, kw_only=True):
    """Values that XLA recomputes on its own, to stay below its memory limit."""

    recomputed_values: Annotated[Size, about("Number of instructions that XLA repeats.")]
    recomputed_flops: Annotated[Size, about("FLOPs of their matrix products in one step.")]
    footprint_without_limit_bytes: Annotated[
        Size | None,
        about("Footprint of the same program compiled without that limit; null if it was not compiled without it."),
    ]


MaybePressure = Annotated[
    PressureJson | None,
    about("Values that XLA recomputes under memory pressure; null if it recomputes none on its own."),
]


def filled(kind: type[_Record], source: object, /, **others: object) -> _Record:
    """A record with `others`, and with what `source` has under the names of its other fields."""
    taken = {name: getattr(source, name) for name in kind.__struct_fields__ if name not in others}
    return convert({**taken, **others}, kind, from_attributes=True)
