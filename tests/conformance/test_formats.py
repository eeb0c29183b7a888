"""The laws of a report format. Every file in `memprof/reports/formats/` meets them without a line here.

A format of a report shows its totals, or else a line for each buffer with the size that the totals are the sums of. A
picture shows the footprint; where its output is bytes, its text cannot be looked at.

What a breakdown (`by`) makes of a report is a document, which knows no format, so not every format is asked for each
breakdown of each report: Markdown is, and of the others each meets each report and each breakdown (see `_covering`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from cProfile import Profile
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import pytest
from comparisons_data import COMPARISONS, many
from diffs_data import DIFFS
from reports_data import REPORTS, many_buffers

from memprof.profiler_cli.compare import ComparedBy
from memprof.reports.format import Format, format_named, formats
from memprof.reports.options import By, RenderOptions
from memprof.reports.units import format_bytes, format_exact_bytes, format_signed_bytes

pytestmark = pytest.mark.with_one_jax

_BINARY = {"pdf": b"%PDF-", "png": b"\x89PNG\r\n", "pprof": b"\x1f\x8b"}  # how a file of theirs begins
every_format = pytest.mark.parametrize("format_", formats(), ids=lambda format_: format_.name)
every_text_format = pytest.mark.parametrize(
    "format_", [format_ for format_ in formats() if format_.name not in _BINARY], ids=lambda format_: format_.name
)
_REPORTS = {name: make() for name, make in REPORTS.items()}
_COMPARISONS = {name: make() for name, make in COMPARISONS.items()}
_DIFFS = {name: make() for name, make in DIFFS.items()}
every_report = pytest.mark.parametrize("name", _REPORTS)
every_comparison = pytest.mark.parametrize("name", _COMPARISONS)
every_diff = pytest.mark.parametrize("name", _DIFFS)


_USUAL, _WIDE = RenderOptions(), RenderOptions(width=200)


@cache
def _first(subject: str, format_: Format, name: str, by: By | None, *, options: RenderOptions = _USUAL) -> str | bytes:
    """A report, a comparison or a diff as it is rendered the first time: what is rendered again is held against it."""
    render = {
        "report": lambda options: format_.render_report(_REPORTS[name], options),
        "comparison": lambda options: format_.render_comparison(_COMPARISONS[name], options),
        "diff": lambda options: format_.render_diff(_DIFFS[name], options),
    }
    return render[subject](replace(options, by=by))


def _in_full(subject: str, format_: Format, name: str, by: By | None = None) -> str:
    """The text of it where there is room for all its numbers: only a terminal has a width."""
    return _text(_first(subject, format_, name, by, options=_WIDE if format_.name == "terminal" else _USUAL))


def _facts(subject: str, name: str) -> Any:
    return json.loads(_in_full(subject, format_named("json"), name))


@every_comparison
@every_text_format
def test_a_comparison_of_sums_is_that_of_whole_reports(format_: Format, name: str) -> None:
    if not format_.compares_sums:
        return
    comparison = _COMPARISONS[name]
    sums = replace(comparison, rows=tuple(row.sums() for row in comparison.rows))
    for by in (None, *(By(each) for each in ComparedBy if format_.name == "markdown")):
        expected = _first("comparison", format_, name, by)
        assert format_.render_comparison(sums, replace(_USUAL, by=by)) == expected


def _covering(subjects: Iterable[str], breakdowns: Sequence[By], num_each: int) -> list[Any]:
    """All formats with all subjects without a breakdown, and with `num_each` of the breakdowns in turn.

    Each format meets each subject and each breakdown. Markdown meets all of them with all subjects, so each breakdown
    meets each subject.
    """
    found = []
    for row, format_ in enumerate(formats()):
        for column, name in enumerate(subjects):
            first = num_each * (row + column)
            taken = [breakdowns[(first + number) % len(breakdowns)] for number in range(num_each)]
            for by in (None, *(breakdowns if format_.name == "markdown" else taken)):
                found.append(pytest.param(format_, name, by, id=f"{by}-{name}-{format_.name}"))
    return found


def test_what_covers_formats_subjects_and_breakdowns_leaves_out_no_pair() -> None:
    for subjects, breakdowns, num_each in _COVERED:
        taken = [param.values for param in _covering(subjects, breakdowns, num_each)]
        pairs = {pair for values in taken for pair in combinations(values, 2)}
        whole = [(format_, name, by) for format_ in formats() for name in subjects for by in breakdowns]
        assert pairs >= {pair for values in whole for pair in combinations(values, 2)}


_OF_COMPARISONS = tuple(by for by in By if by not in (By.BUFFER, By.PADDING, By.LAYOUT, By.STACK))
_COVERED = ((REPORTS, tuple(By), 1), (COMPARISONS, _OF_COMPARISONS, 1), (DIFFS, (*_OF_COMPARISONS, By.BUFFER), 2))


@every_format
def test_it_says_what_it_is(format_: Format) -> None:
    assert format_.name.isidentifier()
    assert format_.suffix.startswith(".")
    assert format_.summary
    assert not format_.summary.endswith(".")


@every_format
def test_names_and_suffixes_are_its_own(format_: Format) -> None:
    assert [other.name for other in formats()].count(format_.name) == 1
    assert [other.suffix for other in formats()].count(format_.suffix) == 1


@pytest.mark.parametrize(("format_", "name", "by"), _covering(*_COVERED[0]))
def test_it_renders_everything_and_the_same_each_time(format_: Format, name: str, by: By | None) -> None:
    rendered = format_.render_report(_REPORTS[name], RenderOptions(by=by))
    assert _is_well_formed(rendered)
    assert (
        by is not None
        or not _is_rendered_again(format_, name, REPORTS)
        or rendered == _first("report", format_, name, None)
    )


def _is_rendered_again(format_: Format, name: str, subjects: Iterable[str]) -> bool:
    """Whether it is rendered a second time, which must give the same. All pictures are one figure, so SVG always is."""
    return format_.name not in ("pdf", "png") or name == next(iter(subjects))


def _is_well_formed(rendered: str | bytes) -> bool:
    """A text is whole lines that do not end in blanks; bytes say what they are by their first ones."""
    if isinstance(rendered, bytes):
        return rendered.startswith(tuple(_BINARY.values()))
    *lines, after_the_last = rendered.split("\n")
    has_whole_lines = after_the_last == "" and lines[-1] != ""
    is_unicode = rendered == rendered.encode(errors="replace").decode()
    return has_whole_lines and is_unicode and all(line == line.rstrip() for line in lines)


def _text(rendered: str | bytes) -> str:
    assert isinstance(rendered, str)
    return rendered


@every_text_format
@every_report
def test_plain_options_give_plain_ascii(format_: Format, name: str) -> None:
    text = _text(format_.render_report(_REPORTS[name], RenderOptions(unicode=False)))
    assert text.isascii()
    assert "\x1b" not in text


@every_text_format
@every_report
def test_its_totals_are_those_of_the_json(format_: Format, name: str) -> None:
    facts = _facts("report", name)
    text = _in_full("report", format_, name)
    _, *lines = text.splitlines()
    if len(lines) == len(facts["buffers"]):
        assert all(str(buffer["size_bytes"]) in line for buffer, line in zip(facts["buffers"], lines, strict=True))
        return
    for size_bytes in (facts["footprint_bytes"], facts["live_peak_bytes"], *facts["categories"].values()):
        assert not size_bytes or _says(text, size_bytes)


def _says(text: str, size_bytes: int) -> bool:
    return any(shown in text for shown in (format_bytes(size_bytes), format_exact_bytes(size_bytes), str(size_bytes)))


def _says_change(text: str, delta_bytes: int) -> bool:
    return any(shown in text for shown in (format_signed_bytes(delta_bytes), str(delta_bytes)))


@pytest.mark.parametrize(("format_", "name", "by"), _covering(*_COVERED[1]))
def test_it_renders_every_comparison(format_: Format, name: str, by: By | None) -> None:
    rendered = format_.render_comparison(_COMPARISONS[name], RenderOptions(by=by))
    assert _is_well_formed(rendered)
    assert not _is_rendered_again(format_, name, COMPARISONS) or rendered == _first("comparison", format_, name, by)


@every_text_format
@every_comparison
def test_plain_options_give_a_comparison_in_plain_ascii(format_: Format, name: str) -> None:
    text = _text(format_.render_comparison(_COMPARISONS[name], RenderOptions(unicode=False)))
    assert text.isascii()
    assert "\x1b" not in text


@every_text_format
@every_comparison
def test_a_comparison_has_the_numbers_of_the_json(format_: Format, name: str) -> None:
    facts = _facts("comparison", name)
    text = _in_full("comparison", format_, name)
    by_category = _in_full("comparison", format_, name, By.CATEGORY)
    for row, effect in zip(facts["rows"], facts["effects"], strict=True):
        assert _says(text, row["footprint_bytes"])
        if row["label"] != facts["baseline"] and not format_.is_picture:
            assert _says_change(text, effect["footprint_delta_bytes"])
            # Where a format shows all sizes, it need not show their differences.
            shows_sizes = all(_says(text, size_bytes) for size_bytes in row["categories"].values())
            for delta_bytes in effect["categories_delta"].values():
                assert shows_sizes or not delta_bytes or _says_change(by_category, delta_bytes)
    for failure in () if format_.is_picture else _COMPARISONS[name].failures:
        assert failure.reason in text or not failure.reason.replace(" ", "").isalnum()


@pytest.mark.parametrize(("format_", "name", "by"), _covering(*_COVERED[2]))
def test_it_renders_every_diff(format_: Format, name: str, by: By | None) -> None:
    rendered = format_.render_diff(_DIFFS[name], RenderOptions(by=by))
    assert _is_well_formed(rendered)
    assert not _is_rendered_again(format_, name, DIFFS) or rendered == _first("diff", format_, name, by)


@every_text_format
@every_diff
def test_a_diff_has_the_numbers_of_the_json(format_: Format, name: str) -> None:
    facts = _facts("diff", name)
    text = _in_full("diff", format_, name)
    _, *lines = text.splitlines()
    if len(lines) == len(facts["buffers"]):
        assert all(str(each["delta_bytes"]) in line for each, line in zip(facts["buffers"], lines, strict=True))
        return
    assert all(_says(text, side["footprint_bytes"]) for side in (facts["before"], facts["after"]))
    assert (
        format_.is_picture or not facts["footprint_delta_bytes"] or _says_change(text, facts["footprint_delta_bytes"])
    )


@every_text_format
@every_diff
def test_plain_options_give_a_diff_in_plain_ascii(format_: Format, name: str) -> None:
    assert _text(format_.render_diff(_DIFFS[name], RenderOptions(unicode=False))).isascii()


# So many that what every report has, whatever its size, counts for little.
_COUNTS = (1_000, 2_000)


# One for all pictures: they are the same figure.
every_other_format = pytest.mark.parametrize(
    "format_", [each for each in formats() if each.name not in ("pdf", "png")], ids=lambda format_: format_.name
)


@every_other_format
def test_the_work_of_a_report_grows_with_its_buffers_and_no_faster(format_: Format) -> None:
    """Seconds are measured by `benchmarks/render_html.py`; calls are the same on every machine."""
    reports = [many_buffers(count) for count in _COUNTS]
    few, twice = (_calls(lambda: format_.render_report(report, RenderOptions())) for report in reports)  # noqa: B023
    assert twice < 2.2 * few


@every_other_format
def test_the_work_of_a_comparison_grows_with_its_buffers_and_no_faster(format_: Format) -> None:
    options = RenderOptions(by=By.MODULE)
    comparisons = [many(count) for count in _COUNTS]
    few, twice = (_calls(lambda: format_.render_comparison(each, options)) for each in comparisons)  # noqa: B023
    assert twice < 2.2 * few


def _calls(action: Callable[[], object]) -> int:
    """How many functions are called, Python's own ones in C too."""
    profiler = Profile()
    profiler.runcall(action)
    return sum(each.callcount for each in profiler.getstats())
