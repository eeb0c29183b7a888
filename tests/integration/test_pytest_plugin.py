"""The pytest plugin, in a pytest of its own: steps within and over their limits, and mistakes."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.with_one_jax

STEP = """
import jax, jax.numpy as jnp, memprof, pytest
def step(params, x):
    return params - jax.grad(lambda p: jnp.sum(jnp.tanh(x @ p)))(params)
shape = lambda *dims: jax.ShapeDtypeStruct(dims, "float32")
spec = memprof.StepSpec(step, (shape(256, 256), shape(64, 256)), roles={"params": "params", "x": "batch"})
"""


def _run(pytester: pytest.Pytester, code: str, *options: str, strict: bool = True) -> pytest.RunResult:
    pytester.makepyfile(STEP + code)
    plugin = () if pytester._request.config.pluginmanager.has_plugin("memprof") else ("-p", "memprof.pytest_plugin")
    return pytester.runpytest_subprocess(
        *plugin, "--memprof-target", "cpu", *(["--strict-markers"] if strict else []), *options
    )


@pytest.mark.slow
def test_each_step_is_checked_and_listed_also_with_xdist(pytester: pytest.Pytester) -> None:
    done = _run(
        pytester,
        """
@pytest.mark.memprof(max="2 MiB")
def test_small():
    return spec

@pytest.mark.memprof(max="1 KiB", target="cpu")
def test_large():
    return spec

@pytest.mark.memprof(max="2 MiB")
def test_both(tmp_path):
    assert tmp_path.is_dir()
    yield spec
    yield memprof.StepSpec(step, (shape(2048, 2048), shape(64, 2048)))

def test_fixture(memprof_check):
    profile = memprof_check(spec, max="2 MiB")
    assert profile.categories["params"] == 4 * 256 * 256
""",
        "-n",
        "1",
    )
    done.assert_outcomes(passed=2, failed=2)
    done.stdout.fnmatch_lines(
        ["*exceeds 1,024 by*", "*memprof: footprints of checked steps*", "*within its limits*test_small*",
         "*over its limits*test_large*", "*within its limits*test_both*", "*over its limits*test_both*",
         "*within its limits*test_fixture*"]
    )  # fmt: skip
    done.stdout.no_fnmatch_line("*Warning*")


# Ways to put a limit on a step that exceeds it, and mistakes in them; each must fail.
BROKEN = """
import asyncio, threading, unittest
import hypothesis
from hypothesis import strategies as st

tight = pytest.mark.memprof(max="1 KiB")
loose = pytest.mark.memprof(max="2 MiB")

@tight
def test_function():
    return spec

@tight
@loose
def test_outer_marker():
    return spec

@loose
@tight
def test_inner_marker():
    return spec

@tight
def test_yields():
    yield spec

@loose
def test_second_step_yielded():
    yield spec
    yield memprof.StepSpec(step, (shape(2048, 2048), shape(64, 2048)))

@tight
def test_yields_nothing():
    if False:
        yield spec

@tight
@pytest.mark.parametrize("number", [1])
def test_parametrized(number):
    return spec

@pytest.mark.parametrize("number", [pytest.param(1, marks=tight)])
def test_marked_parameter(number):
    return spec

@tight
@pytest.mark.filterwarnings("ignore")
async def test_async():
    return spec

@tight
@pytest.mark.filterwarnings("ignore")
async def test_async_generator():
    yield spec

@tight
@hypothesis.settings(max_examples=1, database=None)
@hypothesis.given(st.just(1))
def test_hypothesis(number):
    assert spec

@pytest.mark.memprof("1 KiB")
def test_positional():
    return spec

@pytest.mark.memprof
def test_no_limits():
    return spec

@pytest.mark.memprof(maxx="1 KiB")
def test_misspelt_limit():
    return spec

@pytest.mark.filterwarnings("ignore")
@pytest.mark.memprofs(max="1 KiB")
def test_misspelt_marker():
    assert spec

@pytest.mark.memprof(max="lots")
def test_no_amount():
    return spec

@pytest.mark.memprof(max=1024)
def test_a_number():
    return spec

@pytest.mark.memprof(max="1 KiB", target="nothing")
def test_misspelt_target():
    return spec

@pytest.mark.memprof(fail_on="footprint:+1%")
def test_growth_without_a_baseline():
    return spec

@pytest.mark.memprof(against="missing.json")
def test_missing_baseline():
    return spec

@tight
def test_list():
    return [spec]

@pytest.mark.filterwarnings("ignore")
def test_added_marker(request):
    request.node.add_marker(tight)
    return spec

@loose
def test_added_second_marker(request):
    request.node.add_marker(tight)
    return spec

def test_fixture(memprof_check):
    memprof_check(spec, max="1 KiB")

def test_fixture_in_a_thread(memprof_check):
    def check():
        try:
            memprof_check(spec, max="1 KiB")
        except BaseException:
            pass
    thread = threading.Thread(target=check)
    thread.start()
    thread.join()

def test_fixture_caught(memprof_check):
    try:
        memprof_check(spec, max="1 KiB")
    except Exception:
        pass

class TestMethods:
    @tight
    def test_method(self):
        return spec

    @staticmethod
    @tight
    def test_static():
        return spec

@tight
class TestMarkedClass:
    def test_method(self):
        return spec

    @loose
    def test_method_with_its_own(self):
        return spec

    def test_yields(self):
        yield spec

    class TestNested:
        def test_method(self):
            return spec

class TestInherited(TestMarkedClass):
    pass

@pytest.mark.memprof(target="cpu")
class TestTarget:
    @tight
    def test_method(self):
        return spec

class TestCase(unittest.TestCase):
    @tight
    @pytest.mark.filterwarnings("ignore")
    def test_method(self):
        return spec

    @tight
    def test_without_a_result(self):
        with self.subTest("part"):
            assert spec

@tight
class TestMarkedCase(unittest.TestCase):
    def test_method(self):
        assert spec

@tight
class TestAsyncCase(unittest.IsolatedAsyncioTestCase):
    async def test_method(self):
        assert spec
"""


@pytest.mark.slow
def test_no_way_to_put_a_limit_on_a_test_passes_unseen(pytester: pytest.Pytester) -> None:
    done = _run(pytester, BROKEN, "-W", "ignore::pytest.PytestUnknownMarkWarning", strict=False)
    num_inherited = 4
    assert done.parseoutcomes() == {"failed": BROKEN.count("def test_") + num_inherited}
    done.stdout.fnmatch_lines_random(
        [
            "*did you mean 'memprof'*",
            "*not applied to a method of a unittest.TestCase*",
            "*not applied to an async test*",
            "*'lots' is not a memory size*",
            "*unknown limit 'maxx'*",
            "*must return or yield a memprof.StepSpec or a memprof.TrainSpec, not list*",
            "*there is nothing to check*",
            "*within its limits (max=2 MiB)*test_outer_marker*",
            "*over its limits (max=1 KiB)*test_outer_marker*",
        ]
    )


def test_a_marked_module_counts_also_for_doctests(pytester: pytest.Pytester) -> None:
    code = """
pytestmark = pytest.mark.memprof(max="1 KiB")

def documented():
    '''
    >>> 1
    1
    '''

def test_returns():
    return spec

def test_returns_nothing():
    assert spec
"""
    _run(pytester, code, "--doctest-modules").assert_outcomes(failed=3)
