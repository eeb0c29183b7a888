"""Find the largest value of one field for each value of another: the library behind `memprof fit --against`.

    fit_curve(request, against="context_len", values=(2048, 4096), progress=print, keep=keep)

Each point is a separate fit (`studies.fit.value`). It starts at the batch that holds as many tokens as the previous
one.
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

_LADDER = ((1, 4), (1, 2), (1, 1), (2, 1), (4, 1))  # multiples of the field's own value, if no values are given


def curve_request(request: FitRequest, against: str, value: int) -> FitRequest:
    """Return the fit of one point."""
    return replace(request, subject=request.subject.with_override(against, value), answer_only=True)


def check_curve(request: FitRequest, against: str, values: tuple[int, ...]) -> None:
    """Check for mistakes that can be found before any compile.

    Raises:
        MemprofError: see `check_fit`; or the two fields are the same, or the step does not accept a value.
    """
    check_fit(request)
    if DEVICES in (against, request.field):
        raise MemprofError("--against is for two fields of the step, but devices is not a field: leave out --against")
    if against == request.field:
        raise MemprofError(f"{against} is already varied: name another field with --against")
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
        values: its values; if empty, from a quarter to four times its current value, as far as the step accepts them.
        progress: called with the current activity.
        keep: called with each capture, with the other field's value, and with the field's value.

    Raises:
        NothingFitsError: no value fits at any point.
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
    """Return the request with a search that starts where value x `at` equals that of the previous point."""
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
    """Return values around the field's own value, as far as the step accepts them."""
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
