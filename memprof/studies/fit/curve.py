"""The largest value of one field for each value of another one: the library behind `memprof fit --against`.

    fit_curve(request, against="context_len", values=(2048, 4096), progress=print, keep=keep)

Each point is a fit of its own (`studies.fit.value`). It begins at the batch that holds as many tokens as the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from memprof.analysis.records.capture import Capture
from memprof.errors import MemprofError
from memprof.studies.fit.results import DEVICES, CurvePoint, FitCurve
from memprof.studies.fit.search import NothingFitsError
from memprof.studies.fit.value import FitRequest, check_fit, fit, own_value

_LADDER = ((1, 4), (1, 2), (1, 1), (2, 1), (4, 1))  # of the field's own value, where none are given


def curve_request(request: FitRequest, against: str, value: int) -> FitRequest:
    """The fit of one point."""
    return replace(request, subject=request.subject.with_override(against, value), answer_only=True)


def check_curve(request: FitRequest, against: str, values: tuple[int, ...]) -> None:
    """Find the mistakes that can be found before anything is compiled.

    Raises:
        MemprofError: see `check_fit`; or the fields are no two fields, or a value is none for the step.
    """
    check_fit(request)
    if DEVICES in (against, request.field):
        raise MemprofError("--against is for two fields of the step, and devices is none: leave out --against")
    if against == request.field:
        raise MemprofError(f"{against} is what is varied: name another field with --against")
    if not values and request.subject.is_built_in:
        own_value(replace(request, field=against))
    for value in values:
        check_fit(curve_request(request, against, value))


def fit_curve(
    request: FitRequest,
    *,
    against: str,
    values: tuple[int, ...],
    progress: Callable[[str], None],
    keep: Callable[[Capture, int, int | None], None],
) -> FitCurve:
    """Find the largest value of the request's field for each value of another field.

    Args:
        against: the other field.
        values: its values; none: a quarter of its own value to four times that, as far as the step takes them.
        progress: called with what is going on.
        keep: called with each capture, with the other field's value, and with the field's value.

    Raises:
        NothingFitsError: nothing fits at any value.
        MemprofError, WorkloadError: see `fit`.
    """
    check_curve(request, against, values)
    points: list[CurvePoint] = []
    for at in sorted(set(values)) or _ladder(request, against, progress):
        name = f"{against}={at}"
        point = _point(
            _begun_near(curve_request(request, against, at), points, at),
            at,
            progress=lambda stage, name=name: progress(f"{name}, {stage}"),  # type: ignore[misc]
            keep=lambda capture, value, at=at: keep(capture, at, value),  # type: ignore[misc]
        )
        points.append(point)
    if all(point.found is None for point in points):
        raise NothingFitsError(f"at {against}={points[0].at}, {points[0].refusal}")
    return FitCurve(against=against, points=tuple(points))


def _point(
    request: FitRequest,
    at: int,
    *,
    progress: Callable[[str], None],
    keep: Callable[[Capture, int | None], None],
) -> CurvePoint:
    try:
        return CurvePoint(at=at, found=fit(request, progress=progress, keep=keep))
    except NothingFitsError as error:
        return CurvePoint(at=at, found=None, refusal=str(error))


def _begun_near(request: FitRequest, points: list[CurvePoint], at: int) -> FitRequest:
    """The request, with its search begun where value x `at` is that of the point before."""
    found = points[-1].found if points else None
    if found is None:
        return request
    guess = max(found.value * points[-1].at // at // found.step, 1) * found.step
    nearer = replace(request, subject=request.subject.with_override(request.field, guess))
    with suppress(MemprofError):
        check_fit(nearer)
        return nearer
    return request


def _ladder(request: FitRequest, against: str, progress: Callable[[str], None]) -> list[int]:
    """Values around the one that a field has by itself, as far as the step takes them."""
    field = replace(request, field=against)
    own = own_value(field, progress=lambda stage: progress(f"{against} as it is: {stage}"))
    values = []
    for above, below in _LADDER:
        value = own * above // below
        with suppress(MemprofError):
            if value:
                check_fit(curve_request(request, against, value))
                values.append(value)
    return sorted(set(values))
