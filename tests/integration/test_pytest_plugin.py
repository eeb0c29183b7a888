"""The pytest plugin, in a pytest of its own: steps within and over their limits, and mistakes."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

STEP = """
import jax, jax.numpy as jnp, memprof, pytest
def step(params, x):
    return params - jax.grad(lambda p: jnp.sum(jnp.tanh(x @ p)))(params)
shape = lambda *dims: jax.ShapeDtypeStruct(dims, "float32")
spec = memprof.StepSpec(step, (shape(256, 256), shape(64, 256)), roles={"params": "params", "x": "batch"})
"""


def _run(pytester: pytest.Pytester, code: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(STEP + code)
    plugin = () if pytester._request.config.pluginmanager.has_plugin("memprof") else ("-p", "memprof.pytest_plugin")
    return pytester.runpytest_subprocess(*plugin, "--memprof-target", "cpu", "--strict-markers", *options)


def test_a_step_that_is_returned_is_checked_and_stands_in_the_summary(pytester: pytest.Pytester) -> None:
    done = _run(
        pytester,
        """
@pytest.mark.memprof(max="2 MiB")
def test_small():
    return spec

@pytest.mark.memprof(max="1 KiB", target="cpu")
def test_large():
    return spec
""",
    )
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        ["*exceeds 1,024 by*", "*memprof: footprints of checked steps*", "*within its limits*test_small*",
         "*over its limits*test_large*"]
    )  # fmt: skip
    done.stdout.no_fnmatch_line("*Warning*")


def test_every_step_that_is_yielded_is_checked(pytester: pytest.Pytester) -> None:
    done = _run(
        pytester,
        """
@pytest.mark.memprof(max="2 MiB")
def test_both(tmp_path):
    assert tmp_path.is_dir()
    yield spec
    yield memprof.StepSpec(step, (shape(2048, 2048), shape(64, 2048)))
""",
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*within its limits*test_both*", "*over its limits*test_both*"])


def test_the_fixture_checks_and_returns_the_profile(pytester: pytest.Pytester) -> None:
    done = _run(
        pytester,
        """
def test_it(memprof_check):
    profile = memprof_check(spec, max="2 MiB")
    assert profile.categories["params"] == 4 * 256 * 256

def test_over(memprof_check):
    memprof_check(spec, max="1 KiB")
""",
    )
    done.assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize(
    ("marker", "result", "fragment"),
    [
        ("max='lots'", "spec", "no amount of memory"),
        ("maximum='1KiB'", "spec", "memprof knows no limit 'maximum'"),
        ("max='1KiB'", "None", "must return or yield a memprof.StepSpec, not NoneType"),
        ("", "spec", "there is nothing to check"),
    ],
)
def test_mistakes_fail_the_test_with_one_sentence(
    pytester: pytest.Pytester, marker: str, result: str, fragment: str
) -> None:
    done = _run(pytester, f"\n@pytest.mark.memprof({marker})\ndef test_it():\n    return {result}\n")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines([f"*{fragment}*"])
