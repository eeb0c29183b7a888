"""The magics, in an IPython of their own: what they profile, and that a cell does what it does without them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("IPython", reason="IPython is not installed")

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import memprof
from memprof.progress import stages_shown

SETUP = """
import jax, jax.numpy as jnp
add = jax.jit(lambda x, y: x + y)
double = jax.jit(lambda x: x * 2, donate_argnums=0)
plain = lambda x: x - 1
x = jnp.ones(64)
"""


class Notebook:
    """Runs cells, and says what they show."""

    def __init__(self) -> None:
        self.shell = InteractiveShell.instance(warn_venv=False)  # what is displayed goes to this one
        self.run("%load_ext memprof")
        self.run(SETUP)

    def run(self, cell: str) -> Any:
        """Run a cell. Returns its value."""
        with capture_output() as self.shown:
            return self.shell.run_cell(cell).result

    @property
    def profiles(self) -> list[str]:
        return [each.data["text/plain"] for each in self.shown.outputs if "text/html" in each.data]


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    made = Notebook()
    yield made
    InteractiveShell.clear_instance()


def test_a_line_profiles_a_call_that_is_not_made(notebook: Notebook) -> None:
    notebook.run("calls = []\ndef step(x, *, y):\n    calls.append(type(x).__name__)\n    return x + y")
    notebook.run("found = %memprof --target cpu step(*[x], y=x)")
    profile = notebook.shell.user_ns["found"]
    assert isinstance(profile, memprof.Profile)
    assert profile.footprint_bytes == 3 * 64 * 4
    assert "ArrayImpl" not in notebook.shell.user_ns["calls"]  # traced, never run


def test_a_cell_runs_and_its_jitted_functions_are_profiled_once_for_each_kind_of_arguments(notebook: Notebook) -> None:
    notebook.run("add(x, x)")  # what has been compiled before is looked at, too
    notebook.run(
        "%%memprof --target cpu\n"
        "for n in range(3):\n"
        "    z = add(x, plain(x))\n"
        "once = double(jnp.ones(8))\n"
        "again = double(jnp.ones(16))\n"
        "def later(size):\n"
        "    return double(jnp.ones(size))\n"
        "now = later(32)\n"
        "known = jax.eval_shape(add, now, now)  # no call\n"
        "total = float(z.sum())"
    )
    assert [profile.split()[0] for profile in notebook.profiles] == ["<lambda>"] * 4
    assert notebook.shell.user_ns["total"] == 64
    assert notebook.shell.user_ns["once"].shape == (8,)
    assert notebook.run("float(later(8)[0])") == 2  # what the cell defined works after it
    assert not [name for name in notebook.shell.user_ns if "memprof_" in name]


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ("%memprof add", "'add' is not a function call"),
        ("%memprof add(", "'add(' is not an expression"),
        ("%memprof --target hal add(x, x)", "There is no target 'hal'"),
        ("%memprof --depth 3 add(x, x)", "option --depth not recognized"),
        ("%%memprof add\nadd(x, x)", "'add' is not one"),
        ("%%memprof\nplain(1)", "the cell calls no jitted function"),
    ],
)
def test_a_mistake_is_one_sentence(notebook: Notebook, cell: str, sentence: str) -> None:
    notebook.run(cell)
    assert sentence in notebook.shown.stderr
    assert len(notebook.shown.stderr.splitlines()) == 1
    assert not notebook.profiles


def test_an_error_of_the_cell_is_shown_once(notebook: Notebook) -> None:
    notebook.run("%%memprof --target cpu\nadd(x, jnp.ones(63))")
    assert notebook.shown.stdout.count("incompatible shapes for broadcasting") <= 2  # in the traceback's last line
    assert not notebook.profiles


def test_while_a_step_compiles_a_bar_says_the_stage_and_goes_afterwards(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel makes IPython's shell that of a notebook. What is updated there comes in a row here."""
    monkeypatch.setattr(notebook.shell, "kernel", object(), raising=False)
    monkeypatch.setattr("memprof.progress.time", SimpleNamespace(monotonic=itertools.count(10.0, 1.5).__next__))
    with capture_output() as shown, stages_shown("a <step>") as progress:
        for stage in ("tracing", "compiling"):
            progress(stage)
    first, tracing, compiling, last = (each.data for each in shown.outputs)
    assert first["text/plain"] == "a <step>"
    assert tracing["text/plain"] == "a <step>: tracing ..."
    assert compiling["text/plain"] == "a <step>: tracing 1.5 s, compiling ..."
    assert "<progress " in compiling["text/html"]
    assert "a &lt;step&gt;: tracing" in compiling["text/html"]
    assert last == {"text/plain": "", "text/html": ""}
    notebook.run("found = %memprof --target cpu add(x, x)")
    assert len(notebook.shown.outputs) > len(shown.outputs)
