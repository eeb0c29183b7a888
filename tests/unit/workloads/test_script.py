"""Scripts that name no step: which call of theirs is found, with which options, and that nothing of them runs on."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import pytest

from memprof.errors import MemprofError, WorkloadError
from memprof.sources.jax.tracing.step import StepSpec
from memprof.workloads.user.reference import parse
from memprof.workloads.user.script import training_call

_STEP = """
import jax, jax.numpy as jnp, optax, sys

def train_step(w, x):
    loss, gradients = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - 0.1 * gradients, loss

jitted = jax.jit(train_step, donate_argnums=0)
"""
_LOOP = """
w = jnp.ones((8, 8))
for _ in range(3):
    w, loss = jitted(w, jnp.ones((BATCH, 8)))
print("trained")
"""
_FRAMEWORKS = {
    "nnx": """
from flax import nnx
model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

@nnx.jit
def train_step(model, optimizer, x):
    optimizer.update(model, nnx.grad(lambda model: (model(x) ** 2).mean())(model))

train_step(model, optimizer, jnp.ones((16, 8)))
""",
    "equinox": """
import equinox as eqx
model = eqx.nn.Linear(8, 8, key=jax.random.key(0))

@eqx.filter_jit
def train_step(model, x):
    return eqx.filter_grad(lambda model: (jax.vmap(model)(x) ** 2).mean())(model)

train_step(model, jnp.ones((16, 8)))
""",
    "ahead of time": "jitted.lower(jnp.ones((8, 8)), jnp.ones((16, 8))).compile()",
    "shapes": "jax.eval_shape(jitted, jnp.ones((8, 8)), jnp.ones((16, 8)))",
    "keywords": "jitted(w=jnp.ones((8, 8)), x=jnp.ones((16, 8)))",
    "in a function": """
def main():
    with jax.named_scope("training"):
        jitted(jnp.ones((8, 8)), jnp.ones((16, 8)))

if __name__ == "__main__":
    main()
""",
    "after an evaluation": """
print(jax.jit(lambda w, x: x @ w)(jnp.ones((8, 8)), jnp.ones((16, 8))))
jitted(jnp.ones((8, 8)), jnp.ones((16, 8)))
""",
}
_OPTIONS = {
    "argparse": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
BATCH = parser.parse_args().batch_size
""",
    "click": """
import click
def main(batch_size):
    global BATCH
    BATCH = batch_size
    jitted(jnp.ones((8, 8)), jnp.ones((BATCH, 8)))
click.command()(click.option("--batch-size", type=int, default=4)(main))()
""",
    "typer": """
import typer
def main(batch_size: int = 4):
    jitted(jnp.ones((8, 8)), jnp.ones((batch_size, 8)))
typer.run(main)
""",
    "absl": """
from absl import app, flags
flags.DEFINE_integer("batch_size", 4, "of a step")
def main(argv):
    jitted(jnp.ones((8, 8)), jnp.ones((flags.FLAGS.batch_size, 8)))
app.run(main)
""",
}


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script changes of the process, put back."""
    monkeypatch.setattr(sys, "argv", ["memprof"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def _call(folder: Path, source: str, *arguments: str, **overrides: str) -> StepSpec:
    file = folder / "train.py"
    file.write_text(source, encoding="utf-8")
    if "absl.flags" in sys.modules and "batch_size" in sys.modules["absl.flags"].FLAGS:
        delattr(sys.modules["absl.flags"].FLAGS, "batch_size")
    return training_call(parse(str(file)), arguments, tuple(overrides.items()))


def _rows(spec: StepSpec) -> list[int]:
    """The first dimensions of the arrays that are no weights."""
    return [leaf.shape[0] for leaf in jax.tree.leaves((spec.args, dict(spec.kwargs))) if leaf.shape[0] not in (8, 0)]


@pytest.mark.parametrize("name", _FRAMEWORKS)
def test_the_call_that_differentiates_is_found(tmp_path: Path, name: str) -> None:
    if name == "equinox":
        pytest.importorskip("equinox")
    spec = _call(tmp_path, _STEP + _FRAMEWORKS[name])
    assert 16 in {dimension for leaf in jax.tree.leaves((spec.args, dict(spec.kwargs))) for dimension in leaf.shape}
    assert spec.workload == "train"


@pytest.mark.parametrize("name", _OPTIONS)
def test_options_are_set_and_their_values_are_the_configuration(tmp_path: Path, name: str) -> None:
    pytest.importorskip({"argparse": "argparse"}.get(name, name))
    source = _STEP + _OPTIONS[name] + (_LOOP if name == "argparse" else "")
    assert (_call(tmp_path, source).config["batch_size"], _rows(_call(tmp_path, source))) == (4, [4])
    set_to = _call(tmp_path, source, batch_size="32")
    assert (set_to.config["batch_size"], _rows(set_to)) == (32, [32])


def test_constants_at_the_top_level_are_set_in_their_own_type(tmp_path: Path) -> None:
    source = _STEP + "BATCH: int = 4\nRATE, NAME = 0.1, 'x'\nSCALE = -1.5" + _LOOP
    as_it_is = _call(tmp_path, source)
    assert as_it_is.config == {"BATCH": 4, "SCALE": -1.5}
    changed = _call(tmp_path, source, BATCH="64", SCALE="2")
    assert (changed.config, _rows(changed)) == ({"BATCH": 64, "SCALE": 2.0}, [64])
    with pytest.raises(MemprofError, match="BATCH"):
        _call(tmp_path, source, BATCH="many")
    with pytest.raises(MemprofError, match="has no constant batch at its top level and no option --batch"):
        _call(tmp_path, source, batch="64")


def test_a_script_has_its_arguments_and_is_main(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("BATCH = 5", encoding="utf-8")
    source = _STEP + "from beside import BATCH\nassert __name__ == '__main__' and sys.argv[1:] == ['--fast', 'x']\n"
    assert _rows(
        _call(tmp_path, source + "import __main__\nassert __main__.jitted is jitted" + _LOOP, "--fast", "x")
    ) == [5]


def test_a_module_runs_as_with_python_m(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "trained"
    package.mkdir()
    (package / "sizes.py").write_text("BATCH = 7", encoding="utf-8")
    (package / "__init__.py").touch()
    (package / "loop.py").write_text("from .sizes import BATCH\n" + _STEP + _LOOP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name in ("trained.sizes", "trained"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert _rows(training_call(parse("trained.loop:__main__"), (), ())) == [7]


def test_nothing_of_a_script_runs_after_its_call(tmp_path: Path) -> None:
    source = f"""{_STEP}
done = open({str(tmp_path / "done")!r}, "w", buffering=1)
while True:
    try:
        jitted(jnp.ones((8, 8)), jnp.ones((16, 8)))
    except BaseException:
        done.write("except")
    finally:
        done.write("finally")
"""
    assert _rows(_call(tmp_path, source)) == [16]
    assert (tmp_path / "done").read_text() == ""


def test_a_script_that_trains_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="ended without calling a jitted function that differentiates"):
        _call(tmp_path, _STEP + "print(jax.jit(jnp.sin)(1.0))")


@pytest.mark.parametrize(("source", "raised"), [("1 / 0", ZeroDivisionError), ("sys.exit(3)", WorkloadError)])
def test_what_a_script_raises_is_raised(tmp_path: Path, source: str, raised: type[BaseException]) -> None:
    with pytest.raises(raised):
        _call(tmp_path, _STEP + source)


def test_a_file_with_a_step_is_no_script(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    for source, is_script in [
        ("def step_spec(): ...", False),
        ("from specs import step_spec", False),
        ("from specs import make as step_spec", False),
        ("from specs import *", False),
        ("step_spec = 1", False),
        ("def broken(", False),
        ("def train_spec(): ...", True),
    ]:
        file.write_text(source, encoding="utf-8")
        assert parse(str(file)).is_script is is_script, source
    assert not parse(f"{file}:train_spec").is_script
    assert (str(parse(str(file))), parse(str(file)).label) == (str(file), "train")
