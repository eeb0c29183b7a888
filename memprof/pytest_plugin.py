"""The pytest plugin: a test that returns or yields a step fails where the step takes more memory than it may.

    @pytest.mark.memprof(max="2 GiB", target="h100-80gb")
    def test_train_step_fits():
        return memprof.StepSpec(train_step, (state, batch), donate_argnums=(0,))

The step is compiled, never run, and the sizes of all checked steps stand in a section of the summary. The fixture does
the same inside of a test, and returns the profile:

    def test_activations(memprof_check):
        profile = memprof_check(memprof.StepSpec(train_step, (state, batch)), max="2 GiB", target="cpu")
        assert profile.categories["activations"] < 2**30

Installing memprof is enough for pytest to find it. Nothing of JAX is imported before a step is checked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from memprof.errors import MemprofError

if TYPE_CHECKING:
    from memprof.api import Profile
    from memprof.capture.tracing.step import StepSpec

_OPTIONS = ("max", "fits", "against", "fail_on", "target")
_LINES = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the whole run."""
    group = parser.getgroup("memprof")
    group.addoption(
        "--memprof-target",
        metavar="NAME",
        help="what marked steps are compiled for where neither the marker nor the test says (default: as memprof run)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        "memprof(max=None, fits=None, against=None, fail_on=(), target=None): the StepSpec that the test returns or"
        " yields must keep these limits; see `memprof check`.",
    )
    config.stash[_LINES] = []


@pytest.fixture
def memprof_check(request: pytest.FixtureRequest) -> Callable[..., Profile]:
    """A function that compiles a step, fails the test where it breaks its limits, and returns its profile."""

    def check(step: StepSpec, **limits: Any) -> Profile:
        return _check(step, limits, request.config, request.node.nodeid)

    return check


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a marked test, and check the steps that it returns or yields."""
    marker = pyfuncitem.get_closest_marker("memprof")
    if marker is None:
        return None
    if marker.args:
        pytest.fail("the marker memprof takes keywords alone: @pytest.mark.memprof(max='2 GiB')", pytrace=False)
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    returned = pyfuncitem.obj(**arguments)
    steps: list[Any] = list(returned) if inspect.isgenerator(returned) else [returned]
    for step in steps:
        _check(step, marker.kwargs, pyfuncitem.config, pyfuncitem.nodeid)
    if not steps:
        pytest.fail("the test is marked with memprof but yields no step", pytrace=False)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Function] | None:
    """Collect a marked test that yields, which pytest itself (9.2) refuses; the way is its own for other functions."""
    is_marked = any(mark.name == "memprof" for mark in getattr(obj, "pytestmark", []))
    if is_marked and inspect.isgeneratorfunction(obj) and collector.istestfunction(obj, name):
        return list(collector._genfunctions(name, obj))
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what the checked steps take."""
    lines = config.stash[_LINES]
    if lines:
        terminalreporter.section("memprof: footprints of checked steps")
        for line in lines:
            terminalreporter.write_line(line)


def _check(step: StepSpec, keywords: Mapping[str, Any], config: pytest.Config, nodeid: str) -> Profile:
    """Compile a step and check it. Fails the test, in the words of `memprof check`."""
    from memprof.reports.formats.terminal import lower
    from memprof.reports.options import RenderOptions
    from memprof.reports.units import format_bytes
    from memprof.reports.views.check import check_document
    from memprof.studies.check.gate import check_capture, limits_of

    unknown = sorted(keywords.keys() - set(_OPTIONS))
    if unknown:
        pytest.fail(f"memprof knows no limit '{unknown[0]}': choose from {', '.join(_OPTIONS)}", pytrace=False)
    fail_on = keywords.get("fail_on", ())
    against = keywords.get("against")
    for name, value in keywords.items():
        _check_kind(name, value)
    try:
        limits = limits_of(
            maximum=keywords.get("max"),
            fits=keywords.get("fits"),
            against=Path(against) if against is not None else None,
            fail_on=[fail_on] if isinstance(fail_on, str) else fail_on,
        )
        target = keywords.get("target") or keywords.get("fits") or config.getoption("--memprof-target")
        profile = _profile(step, target)
        result = check_capture(profile.capture, limits)
    except MemprofError as error:
        pytest.fail(f"memprof: {error}", pytrace=False)
    verdict = "within its limits" if result.passed else "over its limits"
    config.stash[_LINES].append(f"{format_bytes(profile.footprint_bytes):>10}  {verdict}  {nodeid}")
    if not result.passed:
        document = check_document(result, top=10)
        pytest.fail(lower(document, RenderOptions(unicode=False)), pytrace=False)
    return profile


def _check_kind(name: str, value: object) -> None:
    """Fails the test where a limit is no text."""
    is_one = value is None or isinstance(value, str) or (isinstance(value, Path) and name in ("against", "target"))
    is_several = isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
    if not is_one and not (is_several and name == "fail_on"):
        pytest.fail(
            f"memprof: {name} is {value!r:.80}, but a text was expected, for example max='2 GiB'", pytrace=False
        )


def _profile(step: StepSpec, target: str | None) -> Profile:
    from memprof.api import profile_spec
    from memprof.capture.tracing.step import StepSpec

    if not isinstance(step, StepSpec):
        raise MemprofError(f"a marked test must return or yield a memprof.StepSpec, not {type(step).__name__}")
    return profile_spec(step, target=target)
