"""The pytest plugin: a test that returns or yields a step fails if the step exceeds its memory limits.

    @pytest.mark.memprof(max="2 GiB", target="h100-80gb")
    def test_train_step_fits():
        return memprof.StepSpec(train_step, (state, batch), donate_argnums=(0,))

The step is compiled, never run. All markers of the test, its class and its module apply, and a section of pytest's
summary lists each check. A marker that cannot be applied fails the test. The fixture `memprof_check` checks a step
inside a test and returns its profile:

    def test_activations(memprof_check):
        profile = memprof_check(memprof.StepSpec(train_step, (state, batch)), max="2 GiB", target="cpu")
        assert profile.categories["activations"] < 2**30

pytest finds the plugin once memprof is installed. JAX is not imported before a step is checked.
"""

from __future__ import annotations

import difflib
import inspect
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from memprof.errors import MemprofError

if TYPE_CHECKING:
    from memprof.api import Profile
    from memprof.sources.jax.tracing.step import StepSpec
    from memprof.studies.check.gate import Limits as CheckLimits
    from memprof.workloads.user.train_spec import TrainSpec

_OPTIONS = ("max", "fits", "against", "fail_on", "target", "pool")
_LIMITS = ("max", "fits", "against")
_MARKER = "memprof"
_PROPERTY = "memprof"  # a user property of the item, which pytest-xdist hands to the process that prints the summary
_NUM_APPLIED = pytest.StashKey[int]()
_FAILURES_IN_THREADS = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line option `--memprof-target`."""
    group = parser.getgroup("memprof")
    group.addoption(
        "--memprof-target",
        metavar="NAME",
        help="target of marked steps without one (default: as memprof run)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker `memprof`."""
    config.addinivalue_line(
        "markers",
        "memprof(max=None, fits=None, against=None, fail_on=(), target=None, pool=None): limits of the StepSpec that"
        " the test returns or yields; see `memprof check`.",
    )


@pytest.fixture
def memprof_check(request: pytest.FixtureRequest) -> Callable[..., Profile]:
    """Return a function that compiles a step, fails the test if it exceeds its limits, and returns its profile."""
    thread = threading.get_ident()
    failures = request.node.stash.setdefault(_FAILURES_IN_THREADS, [])

    def check(step: StepSpec | TrainSpec, **limits: Any) -> Profile:
        profile, failure = _check(step, [_Limits(limits, limits.get("target") or limits.get("fits"))], request.node)
        if failure:
            if threading.get_ident() != thread:  # pytest does not see exceptions of other threads
                failures.append(failure)
            pytest.fail(failure, pytrace=False)
        return profile

    return check


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a marked test, and check the steps that it returns or yields."""
    test = pyfuncitem.obj
    if not _markers(pyfuncitem) or inspect.iscoroutinefunction(test) or inspect.isasyncgenfunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    pyfuncitem.stash[_NUM_APPLIED] = len(_markers(pyfuncitem))
    limits = _limits_of_markers(pyfuncitem)
    returned = test(**arguments)
    steps: list[Any] = list(returned) if inspect.isgenerator(returned) else [returned]
    if not steps:
        pytest.fail("the test has the marker memprof but yields no step", pytrace=False)
    failures = [failure for step in steps if (failure := _check(step, limits, pyfuncitem)[1])]
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test whose markers were not applied or whose check failed in another thread, whatever plugin ran it."""
    result = yield
    for marker in item.iter_markers():
        if _is_misspelled(marker.name, item.config):
            pytest.fail(f"unknown marker '{marker.name}': did you mean '{_MARKER}'?", pytrace=False)
    if len(_markers(item)) != item.stash.get(_NUM_APPLIED, 0):  # a test can also add a marker to itself
        pytest.fail(
            f"the marker memprof was not applied to {_kind_of_test(item)}, so its limits were not checked: mark a plain"
            " test function that returns a memprof.StepSpec",
            pytrace=False,
        )
    failures = item.stash.get(_FAILURES_IN_THREADS, [])
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Function] | None:
    """Collect a marked generator function like any other test function; pytest 9.2 rejects tests that yield."""
    marks = [*getattr(obj, "pytestmark", []), *collector.iter_markers(_MARKER)]
    is_marked = any(mark.name == _MARKER for mark in marks)
    if is_marked and inspect.isgeneratorfunction(obj) and collector.istestfunction(obj, name):
        return list(collector._genfunctions(name, obj))
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the footprints of the checked steps."""
    reports = (report for reports in terminalreporter.stats.values() for report in reports)
    properties = (
        each for report in reports if getattr(report, "when", "") == "teardown" for each in report.user_properties
    )
    lines = [line for name, line in properties if name == _PROPERTY]
    if lines:
        terminalreporter.section("memprof: footprints of checked steps")
        for line in lines:
            terminalreporter.write_line(str(line))


@dataclass(frozen=True, slots=True)
class _Limits:
    """The keywords of one marker or call, and their target; None: the default target."""

    keywords: Mapping[str, Any]
    target: str | None


def _markers(item: pytest.Item) -> list[pytest.Mark]:
    """Return the markers of a test, its class and its module, the closest first."""
    return list(item.iter_markers(_MARKER))


def _limits_of_markers(item: pytest.Item) -> list[_Limits]:
    """Return the limits of all markers. A marker with only a target sets the default target of the others."""
    markers = _markers(item)
    if any(marker.args for marker in markers):
        pytest.fail("the marker memprof takes only keyword arguments: @pytest.mark.memprof(max='2 GiB')", pytrace=False)
    default = next((marker.kwargs["target"] for marker in markers if marker.kwargs.get("target")), None)
    with_limits = [marker for marker in markers if marker.kwargs.keys() - {"target"}]
    return [
        _Limits(marker.kwargs, marker.kwargs.get("target") or marker.kwargs.get("fits") or default)
        for marker in with_limits or markers[:1]
    ]


def _is_misspelled(name: str, config: pytest.Config) -> bool:
    """Return whether an undeclared marker resembles ours; pytest itself only warns about it."""
    declared = {line.partition(":")[0].partition("(")[0].strip() for line in config.getini("markers")}
    letters = name.lower().replace("_", "")
    is_similar = letters.startswith(_MARKER) or difflib.SequenceMatcher(None, letters, _MARKER).ratio() > 0.75
    return name not in declared and is_similar


def _kind_of_test(item: pytest.Item) -> str:
    test = getattr(item, "obj", None)
    if inspect.iscoroutinefunction(test) or inspect.isasyncgenfunction(test):
        return "an async test"
    if type(item).__name__ == "TestCaseFunction":
        return "a method of a unittest.TestCase"
    return f"a {type(item).__name__}"


def _check(step: object, limits: Sequence[_Limits], item: pytest.Item) -> tuple[Profile, str]:
    """Compile a step for each target and check it.

    The test fails if the limits or the step are invalid.

    Returns:
        The profile for the last target, and the report of `memprof check` on the exceeded limits; the report is empty
        if every limit holds.
    """
    from memprof.reports.formats.terminal import lower
    from memprof.reports.options import RenderOptions
    from memprof.reports.units import format_bytes
    from memprof.reports.views.check import check_document
    from memprof.studies.check.gate import check_capture

    profiles: dict[str | None, Profile] = {}
    failures = []
    try:
        parsed = [_parsed_limits(each.keywords) for each in limits]
        for each, allowed in zip(limits, parsed, strict=True):
            target = each.target or item.config.getoption("--memprof-target")
            profile = profiles[target] = profiles.get(target) or _profile(step, target)
            assert profile.capture is not None
            result = check_capture(profile.capture, allowed)
            shown = ", ".join(
                f"{name}={each.keywords[name]}" for name in _LIMITS if each.keywords.get(name) is not None
            )
            verdict = "within its limits" if result.passed else "over its limits"
            line = f"{format_bytes(profile.footprint_bytes):>10}  {verdict} ({shown})  {item.nodeid}"
            item.user_properties.append((_PROPERTY, line))
            if not result.passed:
                failures.append(lower(check_document(result, top=10), RenderOptions(unicode=False)))
    except MemprofError as error:
        pytest.fail(f"memprof: {error}", pytrace=False)
    return profile, "\n\n".join(failures)


def _parsed_limits(keywords: Mapping[str, Any]) -> CheckLimits:
    from memprof.sources.pool_settings import parse_pool
    from memprof.studies.check.gate import limits_of

    unknown = sorted(keywords.keys() - set(_OPTIONS))
    if unknown:
        raise MemprofError(f"unknown limit '{unknown[0]}': choose from {', '.join(_OPTIONS)}")
    for name, value in keywords.items():
        _check_kind(name, value)
    fail_on, against = keywords.get("fail_on", ()), keywords.get("against")
    return limits_of(
        maximum=keywords.get("max"),
        fits=keywords.get("fits"),
        against=Path(against) if against is not None else None,
        fail_on=[fail_on] if isinstance(fail_on, str) else fail_on,
        pool=parse_pool(str(keywords["pool"]), option="pool=") if keywords.get("pool") is not None else None,
    )


def _check_kind(name: str, value: object) -> None:
    """Check the type of a limit.

    Raises:
        MemprofError: the limit is neither a text nor another allowed type.
    """
    is_text = value is None or isinstance(value, str) or (isinstance(value, Path) and name in ("against", "target"))
    is_share = name == "pool" and isinstance(value, float)
    is_several = isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
    if not (is_text or is_share) and not (is_several and name == "fail_on"):
        raise MemprofError(f"{name} must be a string such as max='2 GiB', not {value!r:.80}")


def _profile(step: object, target: str | None) -> Profile:
    from memprof.api import profile
    from memprof.sources.jax.tracing.step import StepSpec
    from memprof.workloads.user.train_spec import TrainSpec

    if not isinstance(step, (StepSpec, TrainSpec)):
        raise MemprofError(
            f"a marked test must return or yield a memprof.StepSpec or a memprof.TrainSpec, not {type(step).__name__}"
        )
    return profile(step, target=target)
