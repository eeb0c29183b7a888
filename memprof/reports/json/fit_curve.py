"""What `memprof fit --against --format json` prints, as typed records."""

# Without `from __future__ import annotations`: see `answers.py`.

from typing import Annotated

from msgspec import Meta, Struct

from memprof.reports.json.types import Size, about, filled
from memprof.studies.fit.results import CurvePoint, FitCurve


class FitPointJson(Struct, frozen=True, kw_only=True):
    """The result at one value of the other field."""

    at: Annotated[int, Meta(ge=1), about("The value of the other field.")]
    value: Annotated[int | None, about("The largest value that fits there; null if not even the smallest fits.")]
    footprint_bytes: Annotated[Size | None, about("Footprint of value.")]
    next_footprint_bytes: Annotated[Size | None, about("Footprint of the value after it, which does not fit.")]
    num_compiles: Annotated[int | None, about("Number of compiles of this point; null if nothing fits.")]
    refusal: Annotated[str | None, about("The reason why nothing fits.")]
    command: Annotated[str | None, about("The command line that profiles value.")]


class FitCurveJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.fit_curve/1"):
    """The largest value of a field with which a step fits, for each value of another field."""

    subject: Annotated[str, about("The workload or the user's step.")]
    techniques: tuple[str, ...]
    target: str
    field: Annotated[str, about("The field whose largest value is searched for.")]
    against: Annotated[str, about("The other field.")]
    memory_bytes: Size
    reserve_bytes: Annotated[Size, about("memory_bytes - budget_bytes.")]
    budget_bytes: Annotated[Size, about("JAX's pool, less the bytes that must stay free.")]
    mesh: Annotated[str, about("The mesh that it was compiled for: `fsdp=4,tp=2`; empty for one device.")]
    num_devices: Annotated[
        int, Meta(ge=1), about("Number of devices of that mesh; footprints and memory are those of one device.")
    ]
    points: Annotated[
        tuple[FitPointJson, ...], Meta(min_length=1), about("The points, by ascending values of the other field.")
    ]


def fit_curve_json(curve: FitCurve) -> FitCurveJson:
    """What is printed of a curve."""
    return filled(
        FitCurveJson, curve.any_found, against=curve.against, points=[_fit_point(point) for point in curve.points]
    )


def _fit_point(point: CurvePoint) -> FitPointJson:
    found = point.found
    next_value = None if found is None else found.next_value
    return FitPointJson(
        at=point.at,
        value=None if found is None else found.value,
        footprint_bytes=None if found is None else found.footprint_of(found.value),
        next_footprint_bytes=None if found is None or next_value is None else found.footprint_of(next_value),
        num_compiles=None if found is None else len(found.tried),
        refusal=point.refusal or None,
        command=None if found is None else found.command,
    )
