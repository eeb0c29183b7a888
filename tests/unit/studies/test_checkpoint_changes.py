"""Checkpoints around the layers of a step: the code for them, and the step traced with that code. None is compiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from report_builder import H100

from memprof.sources.jax.checkpointing.apply import checkpointed
from memprof.sources.jax.checkpointing.layers import layers_of
from memprof.sources.jax.compile import traced_jaxpr
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.changes import checkpoint_places
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.checkpoint_code import FORMS, forms_of
from memprof.studies.changes.recomputation import recomputations
from memprof.workloads.intents import Aim

_ARGUMENTS = """
S = jax.ShapeDtypeStruct
args = ([{"up": S((4, 16), jnp.float32), "down": S((16, 4), jnp.float32)}] * 3, S((8, 4), jnp.float32))
"""
_LAYERS = f"""
import jax, jax.numpy as jnp

def block(w, x):
    return x + jnp.sin(x @ w["up"]) @ w["down"]

def loss(params, x):
    for w in params:
        x = block(w, x)
    return jnp.mean(x ** 2)

def step(params, x):
    return jax.grad(loss)(params, x)
{_ARGUMENTS}"""
_STATIC = (
    _LAYERS.replace("def block(w, x)", "def block(w, x, *, name)")
    .replace("block(w, x)\n", 'block(w, x, name="layer")\n')
    .replace('@ w["down"]', '@ w["down"] if name == "layer" else x')
)
_WITHIN_THE_STEP = f"""
import jax, jax.numpy as jnp

def step(params, x):
    def block(w, x):
        return x + jnp.sin(x @ w["up"]) @ w["down"]
    def loss(params):
        y = x
        for w in params:
            y = block(w, y)
        return jnp.mean(y ** 2)
    return jax.grad(loss)(params)
{_ARGUMENTS}"""
_ONE_FOR_ALL = f"""
import jax, jax.numpy as jnp

def net(params, x):
    for w in params:
        x = x + jnp.sin(x @ w["up"]) @ w["down"]
    return x

def step(params, x):
    return jax.grad(lambda params: jnp.mean(net(params, x) ** 2))(params)
{_ARGUMENTS}"""
_ONE_FOR_ALL_WITHIN = f"""
import jax, jax.numpy as jnp

def step(params, x):
    def net(params, x):
        for w in params:
            x = x + jnp.sin(x @ w["up"]) @ w["down"]
        return x
    return jax.grad(lambda params: jnp.mean(net(params, x) ** 2))(params)
{_ARGUMENTS}"""
# With three checkpoints of small pieces in the same loss.
_WITH_OTHERS = _ONE_FOR_ALL.replace(
    "jnp.mean(net(params, x) ** 2)", "sum(map(jax.checkpoint(jnp.sin), net(params, x)[0, :3]))"
)
_SCAN = """
import jax, jax.numpy as jnp

def step(weights, x):
    def loss(weights):
        def body(x, w):
            return x + jnp.sin(x @ w["up"]) @ w["down"], None
        return jnp.sum(jax.lax.scan(body, x, weights)[0] ** 2)
    return jax.grad(loss)(weights)

S = jax.ShapeDtypeStruct
args = ({"up": S((8, 4, 16), jnp.float32), "down": S((8, 16, 4), jnp.float32)}, S((8, 4), jnp.float32))
"""
_NO_LAYERS = """
import jax, jax.numpy as jnp

def step(w, x):
    return jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w)

args = (jax.ShapeDtypeStruct((4, 16), jnp.float32), jax.ShapeDtypeStruct((8, 4), jnp.float32))
"""
# Two functions with layers, and one without.
_SEVERAL = """
import jax, jax.numpy as jnp

def first(w, x):
    return x + jnp.sin(x @ w)

def second(w, x):
    return x + jnp.cos(x @ w)

def loss(layer, params, x):
    for w in params:
        x = layer(w, x)
    return jnp.mean(x ** 2)

def step(params, x):
    one = jax.grad(lambda x: loss(lambda *args: first(*args), params, x))(x)
    two = jax.grad(lambda x: loss(lambda *args: second(*args), params, x))(x)
    return one, two, jax.grad(lambda x: jnp.sum(jnp.sin(x)))(x)

args = ([jax.ShapeDtypeStruct((4, 4), jnp.float32)] * 3, jax.ShapeDtypeStruct((8, 4), jnp.float32))
"""
_NNX = """
import jax, jax.numpy as jnp
from flax import nnx

class Block(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(4, 16, rngs=rngs)
        self.down = nnx.Linear(16, 4, rngs=rngs)
    def __call__(self, x):
        return x + self.down(nnx.gelu(self.up(x)))

@nnx.jit
def step(blocks, x):
    def loss(blocks):
        y = x
        for block in blocks:
            y = block(y)
        return jnp.mean(y ** 2)
    return nnx.grad(loss)(blocks)

blocks = nnx.eval_shape(lambda: nnx.List([Block(nnx.Rngs(0)) for _ in range(3)]))
args = (blocks, jax.ShapeDtypeStruct((8, 4), jnp.float32))
"""
_EQUINOX = """
import equinox as eqx, jax, jax.numpy as jnp

class Block(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    def __init__(self, key):
        self.up, self.down = eqx.nn.Linear(4, 16, key=key), eqx.nn.Linear(16, 4, key=key)
    def __call__(self, x):
        return x + jax.vmap(self.down)(jnp.sin(jax.vmap(self.up)(x)))

def step(blocks, x):
    def loss(blocks):
        y = x
        for block in blocks:
            y = block(y)
        return jnp.mean(y ** 2)
    return eqx.filter_grad(loss)(blocks)

blocks = eqx.filter_eval_shape(lambda: [Block(jax.random.key(0)) for _ in range(3)])
args = (blocks, jax.ShapeDtypeStruct((8, 4), jnp.float32))
"""
_LINEN = """
import jax, jax.numpy as jnp
from flax import linen as nn

class Block(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        hidden = nn.Dense(16)(x)
        return x + nn.Dense(4)(nn.gelu(hidden) if train else hidden)

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(3):
            x = Block()(x, True)
        return x

def step(params, x):
    return jax.grad(lambda params: jnp.mean(Net().apply(params, x) ** 2))(params)

x = jax.ShapeDtypeStruct((8, 4), jnp.float32)
args = (jax.eval_shape(Net().init, jax.random.key(0), x), x)
"""

_UNEQUAL = """
import jax, jax.numpy as jnp

def blur(w, x):
    h = jnp.tanh(x @ w["up"])
    return jnp.sin(h + jnp.cos(h)) @ w["down"]

def head(x):
    return jnp.mean(jnp.exp(x @ x.T) ** 2)

def loss(params, x):
    for w in params:
        x = blur(w, x)
    return head(x)

def step(params, x):
    return jax.grad(loss)(params, x)

S = jax.ShapeDtypeStruct
widths = ((4, 64), (8, 80), (16, 96))
params = [{"up": S((n, m), jnp.float32), "down": S((m, 2 * n), jnp.float32)} for n, m in widths]
args = (params, S((128, 4), jnp.float32))
"""
_ONCE = """
import jax, jax.numpy as jnp

def wide(w, x):
    return jnp.cos(jnp.sin(jnp.tanh(x @ w) @ w) @ w)

def loss(w, x):
    x = wide(w, x)
    return jnp.sum(jnp.exp(jnp.log1p(jax.nn.sigmoid(x @ w) @ w) @ w))

def step(w, x):
    return jax.grad(loss)(w, x)

args = (jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((512, 64), jnp.float32))
"""
_MANY_LAYERS = f"""
import jax, jax.numpy as jnp

def part(w, x):
    return jnp.cos(jnp.sin(x @ w["up"]))

def block(w, x):
    return x + jnp.exp(x) + part(w, x) @ w["down"]

def net(params, x):
    for w in params:
        x = block(w, x)
    return x

def head(x):
    return jnp.mean(jnp.exp(x @ x.T) ** 2)

def loss(params, x):
    return head(net(params, x))

def step(params, x):
    return jax.grad(loss)(params, x)
{_ARGUMENTS.replace("* 3", "* 4").replace("S((8, 4)", "S((64, 4)")}"""
_FROZEN = f"""
import jax, jax.numpy as jnp

def block(w, x):
    return x + jnp.sin(x @ w["up"]) @ w["down"]

def net(params, x):
    for w in params:
        x = block(w, x)
    return jnp.exp(x @ x.T)

def loss(params, frozen, x):
    return jnp.mean((net(params, x) - net(frozen, x)) ** 2)

def step(params, x):
    return jax.grad(loss)(params, params, x)
{_ARGUMENTS}"""


class Program:
    """A program that is a file, as JAX's source lines need it."""

    def __init__(self, source: str, folder: Path) -> None:
        path = folder / "train.py"
        path.write_text(source)
        self.names: dict[str, Any] = {"__name__": "train"}
        exec(compile(source, str(path), "exec"), self.names)

    def step(self, **fields: Any) -> Step:
        spec = StepSpec(self.names["step"], self.names["args"])
        unread: Any = SimpleNamespace()
        return Step(**{"spec": spec, "target": H100, "report": unread, "advice": (), **fields})

    def changes(self) -> dict[str, Change]:
        return {change.rule: change for change in recomputations(self.step())}


def _num_checkpoints(change: Change) -> int:
    """How many checkpoints the traced step has: those in its functions and their derivatives."""
    with change.around():
        return str(traced_jaxpr(change.spec, H100)).count("prevent_cse=")


_RULES = ["recompute_dots", "recompute_dots_with_no_batch_dims", "recompute_nothing"]


def test_each_policy_is_a_change_of_the_layers(tmp_path: Path) -> None:
    changes = Program(_LAYERS, tmp_path).changes()
    assert [*changes] == _RULES
    dots, without_batch, nothing = changes.values()
    for each in changes.values():
        assert each.intent.aim is Aim.RECOMPUTE_MODULES
        assert each.evidence == "the backward pass goes through 3 layers; block (train.py:5)"
        assert each.keeps_numbers
        assert _num_checkpoints(each) == 3
    head = "import jax\n\n# in train.py, after the definition of block\n"
    assert dots.code == f"{head}block = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)\n"
    assert nothing.code == f"{head}block = jax.checkpoint(block)\n"
    assert "policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)" in without_batch.code
    assert dots.what == "Checkpoint the layers, and keep the results of matrix products"
    assert nothing.what == "Checkpoint the layers, and keep their inputs alone"


def test_arguments_that_are_no_arrays_stay_as_they_are(tmp_path: Path) -> None:
    nothing = Program(_STATIC, tmp_path).changes()["recompute_nothing"]
    assert nothing.code.startswith("import jax\n\n\ndef checkpointed(function, **options):\n")
    assert nothing.code.endswith("\n# in train.py, after the definition of block\nblock = checkpointed(block)\n")
    assert _num_checkpoints(nothing) == 3


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (_NNX, "Block.__call__ = nnx.remat(Block.__call__)"),
        (_EQUINOX, "Block.__call__ = eqx.filter_checkpoint(Block.__call__)"),
        (_LINEN.replace("x, train)", "x)").replace("x, True)", "x)").replace(" if train else hidden", ""),
         "Block.__call__ = nn.remat(Block.__call__)"),
        (_LINEN, "Block.__call__ = checkpointed(Block.__call__)"),
    ],
)  # fmt: skip
def test_a_method_of_a_framework_has_the_checkpoint_of_its_framework(tmp_path: Path, source: str, line: str) -> None:
    change = Program(source, tmp_path).changes()["recompute_nothing"]
    assert change.code.endswith(f"\n# in train.py, after the definition of Block\n{line}\n")
    assert _num_checkpoints(change) == 3


_HAIKU_BLOCK = """
def block(x, name):
    return x + hk.Linear(4, name=name + "_down")(jax.nn.gelu(hk.Linear(16, name=name + "_up")(x)))

"""
_HAIKU = f"""
import haiku as hk, jax, jax.numpy as jnp
{_HAIKU_BLOCK}
@hk.without_apply_rng
@hk.transform
def net(x):
    for number in range(3):
        x = block(x, "block_" + str(number))
    return x

def step(params, x):
    return jax.grad(lambda params: jnp.mean(net.apply(params, x) ** 2))(params)

x = jax.ShapeDtypeStruct((8, 4), jnp.float32)
args = (jax.eval_shape(net.init, jax.random.key(0), x), x)
"""


_HAIKU_WITHIN = _HAIKU.replace(_HAIKU_BLOCK, "").replace(
    "    for number", indent(_HAIKU_BLOCK, "    ") + "    for number"
)


@pytest.mark.parametrize(("source", "before"), [(_HAIKU, "@hk.without"), (_HAIKU_WITHIN, "    for number")])
def test_a_function_within_a_haiku_transform_has_haikus_checkpoint(tmp_path: Path, source: str, before: str) -> None:
    """Parameters that `jax.checkpoint` sees made, when the model is initialized, leak from it."""
    program = Program(source, tmp_path)
    change = program.changes()["recompute_nothing"]
    *head, line = change.code.splitlines()
    assert line == "block = checkpointed(block)"
    assert "hk.remat(run" in change.code
    assert "jax.checkpoint(" not in change.code
    assert _num_checkpoints(change) == 3
    spaces = before[: len(before) - len(before.lstrip())]
    code = "\n".join([*head, source.replace(before, f"{spaces}{line}\n{before}")])
    exec(compile(code, str(tmp_path / "train.py"), "exec"), pasted := {"__name__": "train"})
    params = pasted["net"].init(jax.random.key(0), jnp.ones((8, 4)))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, program.names["args"][0])


def test_the_form_is_that_of_the_framework_whose_module_a_class_is() -> None:
    def cls(module: str, name: str) -> type:
        return type("Block", (type(name, (), {"__module__": module}),), {})

    plain = forms_of(None)
    assert [form.call for form in plain] == ["jax.checkpoint", "checkpointed"]
    assert forms_of(cls("haiku._src.module", "Module")) == FORMS["haiku"]
    assert forms_of(cls("equinox._module", "Module")) == FORMS["equinox"]
    assert forms_of(cls("mine.net", "Module")) == plain
    assert forms_of(cls("haiku._src.module", "Helper")) == plain
    (form,) = FORMS["haiku"]
    assert "hk.remat(run" in form.head
    assert "jax.checkpoint(" not in form.head


def test_the_body_of_a_scan_within_the_step_is_named_with_its_line(tmp_path: Path) -> None:
    changes = Program(_SCAN, tmp_path).changes()
    assert [*changes] == _RULES
    dots, _, nothing = changes.values()
    assert nothing.intent.aim is Aim.RECOMPUTE_SCAN
    assert nothing.what == "Checkpoint the body of each scan, and keep their inputs alone"
    where = "step.<locals>.loss.<locals>.body (train.py:7)"
    assert nothing.evidence == f"the backward pass goes through 8 iterations of scans; {where}"
    head = "# at the top of train.py\nimport jax\n\n# in train.py, after the definition of body (line 7)\n"
    assert nothing.code == f"{head}body = jax.checkpoint(body, prevent_cse=False)\n"
    policy = "policy=jax.checkpoint_policies.dots_saveable"
    assert dots.code == f"{head}body = jax.checkpoint(body, {policy}, prevent_cse=False)\n"
    assert _num_checkpoints(nothing) == 1


_ENCODED = """
import jax, jax.numpy as jnp

FUNCTIONS = (jnp.sin, jnp.tanh, jnp.cos, jax.nn.sigmoid, jnp.arctan, jnp.log1p)

def encoder(w, x):
    for function in FUNCTIONS:
        x = function(x @ w)
    return x.reshape(64, 16, 16).mean(1)

def decoder(w, x):
    x = jnp.repeat(x, 16, 0)
    for function in FUNCTIONS[::-1]:
        x = function(x @ w)
    return x.mean()

def loss(w, x):
    def cell(x, _):
        for _ in range(3):
            x = jnp.tanh(jnp.sin(x @ w))
        return x, None
    return decoder(w, jax.lax.scan(cell, encoder(w, x), None, length=64)[0])

def step(w, x):
    return jax.grad(loss)(w, x)

args = (jax.ShapeDtypeStruct((16, 16), jnp.float32), jax.ShapeDtypeStruct((1024, 16), jnp.float32))
"""


def test_a_function_outside_of_scans_whose_bodies_only_the_step_has_is_checkpointed_too(tmp_path: Path) -> None:
    change = Program(_ENCODED, tmp_path).changes()["recompute_nothing"]
    assert change.what == "Checkpoint encoder and the body of each scan, and keep their inputs alone"
    assert change.evidence == (
        "the backward pass goes through 64 iterations of scans; loss.<locals>.cell (train.py:20), encoder (train.py:8)"
    )
    assert change.code == (
        "# at the top of train.py\nimport jax\n\n"
        "# in train.py, after the definition of cell (line 20)\n"
        "cell = jax.checkpoint(cell, prevent_cse=False)\n\n"
        "# in train.py, after the definition of encoder\n"
        "encoder = jax.checkpoint(encoder)"
    )
    assert _num_checkpoints(change) == 2


def test_a_layer_within_the_step_that_is_called_for_each_block_is_named_too(tmp_path: Path) -> None:
    change = Program(_WITHIN_THE_STEP, tmp_path).changes()["recompute_nothing"]
    assert change.code.startswith("# at the top of train.py\nimport jax\n\n\ndef checkpointed(function, **options):\n")
    line = "# in train.py, after the definition of block (line 6)\nblock = checkpointed(block)\n"
    assert change.code.endswith(f"\n{line}")
    assert _num_checkpoints(change) == 3


@pytest.mark.parametrize("source", [_ONE_FOR_ALL, _ONE_FOR_ALL_WITHIN, _WITH_OTHERS])
def test_a_function_that_makes_all_blocks_in_one_call_gets_no_checkpoint_of_its_own(
    tmp_path: Path, source: str
) -> None:
    """One checkpoint around them all would keep nothing within them: memprof puts it around each."""
    change = Program(source, tmp_path).changes()["recompute_nothing"]
    assert change.code == (
        "import jax\nimport memprof\n\n# memprof found no function of yours that contains only the repeated part\n"
        "# after the definition of step\nstep = memprof.apply(jax.checkpoint_policies.nothing_saveable)(step)\n"
    )
    assert change.evidence.startswith("the backward pass goes through 3 layers; ")
    assert _num_checkpoints(change) == 3


_SUBSTEPS = """
import jax, jax.numpy as jnp

def substep(w, x):
    for _ in range(16):
        x = x + 0.1 * jnp.sin(x @ w)
    return x

def between(w, x):
    return jax.lax.scan(lambda x, _: (substep(w, x), None), x, None, length=20)[0]

def loss(w, x):
    def observed(x, _):
        x = between(w, x)
        return x, jnp.mean(x)
    return jnp.mean(jax.lax.scan(observed, x, None, length=20)[1])

def step(w, x):
    return jax.grad(loss)(w, x)

args = (jax.ShapeDtypeStruct((16, 16), jnp.float32), jax.ShapeDtypeStruct((64, 16), jnp.float32))
"""


def test_the_substeps_of_a_scan_within_a_scan_are_the_iterations(tmp_path: Path) -> None:
    """A checkpoint around `between`, too, would save less than 5% of the step, and compute each substep twice more."""
    change = Program(_SUBSTEPS, tmp_path).changes()["recompute_nothing"]
    assert change.what == "Checkpoint the body of each scan, and keep their inputs alone"
    assert change.evidence == "the backward pass goes through 400 iterations of scans; substep (train.py:6)"
    assert change.code.endswith("substep = jax.checkpoint(substep, prevent_cse=False)\n")


def test_code_that_the_program_does_not_bear_is_not_advised(tmp_path: Path) -> None:
    """The layer looks at its own code, so both forms fail while they are traced."""
    proud = "    assert block.__code__.co_name == 'block'\n    return x + jnp"
    source = _LAYERS.replace("    return x + jnp", proud)
    change = Program(source, tmp_path).changes()["recompute_nothing"]
    assert "step = memprof.apply(" in change.code


def test_the_loss_itself_is_checkpointed_if_it_has_no_layers(tmp_path: Path) -> None:
    change = Program(_NO_LAYERS, tmp_path).changes()["recompute_dots"]
    assert change.what == "Checkpoint the loss, and keep the results of matrix products"
    assert change.evidence == "the backward pass goes through 1 function"
    assert change.intent.aim is Aim.RECOMPUTE_MODULES
    assert "step = memprof.apply(jax.checkpoint_policies.dots_saveable)(step)\n" in change.code
    assert _num_checkpoints(change) == 1


def test_a_function_that_is_called_with_other_shapes_has_a_checkpoint_in_each_call(tmp_path: Path) -> None:
    change = Program(_UNEQUAL, tmp_path).changes()["recompute_nothing"]
    assert change.what == "Checkpoint each call of blur, and keep their inputs alone"
    assert change.evidence == "the backward pass goes through 3 calls; blur (train.py:5)"
    assert change.code == "import jax\n\n# in train.py, after the definition of blur\nblur = jax.checkpoint(blur)\n"
    assert change.intent.aim is Aim.RECOMPUTE_MODULES
    assert _num_checkpoints(change) == 3


def test_a_function_that_is_called_once_has_a_checkpoint_if_it_makes_much(tmp_path: Path) -> None:
    """It makes half of the bytes, and the loss makes the others after it."""
    change = Program(_ONCE, tmp_path).changes()["recompute_nothing"]
    assert change.what == "Checkpoint wide, and keep their inputs alone"
    assert change.evidence == "the backward pass goes through 1 function; wide (train.py:5)"
    assert _num_checkpoints(change) == 1


def test_functions_within_and_around_many_layers_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(
        checkpoint_places._Places,
        "of_functions",
        lambda self, functions: tried.extend(each.name for each in functions),
    )
    change = Program(_MANY_LAYERS, tmp_path).changes()["recompute_nothing"]
    assert change.evidence.endswith("4 layers; block (train.py:8)")
    assert tried == ["head"]


def test_a_function_within_the_layers_is_tried_if_it_makes_much_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head calls a part of the layers ten times, each time with other rows."""
    head = """for num_rows in range(63, 53, -1):
        x = jnp.exp(part({"up": jnp.ones((4, 16))}, x[:num_rows]))[:, :4]
    return jnp.mean(x)"""
    tried: list[list[str]] = []
    monkeypatch.setattr(
        checkpoint_places._Places,
        "of_functions",
        lambda self, functions: tried.append([each.name for each in functions]),
    )
    Program(_MANY_LAYERS.replace("return jnp.mean(jnp.exp(x @ x.T) ** 2)", head), tmp_path).changes()
    assert ["part"] in tried
    assert ["net"] not in tried


_ROLLOUT = """
import jax, jax.numpy as jnp

def interact(w, x):
    return x + jnp.sin(jnp.tanh(x @ w) @ w.T)

def embed(w, x):
    return jnp.cos(jnp.exp(x @ w)) @ w.T

def forward(weights, x):
    for w in weights:
        x = interact(w, x)
    for w in weights[:3]:
        x = embed(w, x)
    return x

def step(weights, x):
    def loss(weights):
        body = jax.checkpoint(lambda x, _: (forward(weights, x), None))
        return jnp.sum(jax.lax.scan(body, x, None, length=4)[0] ** 2)
    return jax.grad(loss)(weights)

S = jax.ShapeDtypeStruct
args = ([S((64, 256), jnp.float32)] * 8, S((1024, 64), jnp.float32))
"""


def test_layers_that_have_checkpoints_have_more_within(tmp_path: Path) -> None:
    """The backward pass recomputes all interactions of an iteration at once."""
    change = Program(_ROLLOUT, tmp_path).changes()["recompute_nothing"]
    assert change.what.startswith("Checkpoint each call of interact")
    assert "\ninteract = jax.checkpoint(interact)\n" in change.code
    assert change.evidence.endswith("of them within another checkpoint")


_CHECKPOINTED_SCAN = """
import jax, jax.numpy as jnp

def attend(w, x):
    return jax.nn.softmax(jnp.sin((x @ w) @ (x @ w).T)) @ x

def mix(w, x):
    return jnp.tanh(jnp.sin(x @ w)) @ w.T

def block(w, x):
    x = x + mix(w, x)
    x = x + attend(w, x)
    x = x + mix(w, x)
    return x + attend(w, x)

def step(weights, x):
    def loss(weights):
        body = jax.checkpoint(lambda x, w: (block(w, x), None))
        return jnp.sum(jax.lax.scan(body, x, weights)[0] ** 2)
    return jax.grad(loss)(weights)

S = jax.ShapeDtypeStruct
args = (S((8, 64, 512), jnp.float32), S((1024, 64), jnp.float32))
"""


def test_functions_within_the_checkpoint_of_a_scanned_layer_are_found(tmp_path: Path) -> None:
    """JAX records the calls within a checkpoint from its function on."""
    change = Program(_CHECKPOINTED_SCAN, tmp_path).changes()["recompute_nothing"]
    assert change.what.startswith("Checkpoint each call of mix and attend")
    assert "mix = jax.checkpoint(mix)\n" in change.code
    assert "attend = jax.checkpoint(attend)\n" in change.code
    assert change.evidence.endswith("; 4 of them within another checkpoint")


def test_a_function_that_is_differentiated_for_each_example_has_checkpoints(tmp_path: Path) -> None:
    """Its closures are tracers of `vmap`, which are invalid once that has returned."""
    source = """
import jax, jax.numpy as jnp

def block(w, x):
    return jnp.tanh(jnp.sin(x @ w) @ w.T)

def step(weights, examples):
    def gradient(x):
        def loss(weights):
            h = x
            for w in weights:
                h = block(w, h)
            return jnp.sum(h * x)
        return jax.grad(loss)(weights)
    clipped = jax.tree.map(lambda g: jnp.clip(g, -1, 1), jax.vmap(gradient)(examples))
    return jax.tree.map(lambda g: jnp.mean(g, 0), clipped)

S = jax.ShapeDtypeStruct
args = ([S((64, 64), jnp.float32)] * 6, S((4, 128, 64), jnp.float32))
"""
    change = Program(source, tmp_path).changes()["recompute_nothing"]
    assert change.what == "Checkpoint the layers, and keep their inputs alone"
    assert change.code.endswith("block = jax.checkpoint(block)\n")


def test_calls_within_another_checkpoint_are_counted(tmp_path: Path) -> None:
    """Of the three calls of `blur`, the first is in a function that the program checkpoints."""
    source = _UNEQUAL.replace(
        "        x = blur(w, x)", "        x = (jax.checkpoint(again) if w is params[0] else blur)(w, x)"
    )
    source = source.replace("def head", "def again(w, x):\n    return blur(w, x)\n\ndef head")
    change = Program(source, tmp_path).changes()["recompute_nothing"]
    assert (
        change.evidence
        == "the backward pass goes through 3 calls; blur (train.py:5); 1 of them within another checkpoint"
    )


def test_the_passes_of_a_frozen_model_are_not_layers(tmp_path: Path) -> None:
    """The policy's 3 blocks are differentiated. The frozen model calls the same function, with no effect."""
    change = Program(_FROZEN, tmp_path).changes()["recompute_nothing"]
    assert change.what == "Checkpoint the layers, and keep their inputs alone"
    assert change.evidence == (
        "the backward pass goes through 3 layers; block (train.py:5);"
        " 3 other calls are not differentiated, so the checkpoint changes nothing there"
    )
    assert change.code.endswith("block = jax.checkpoint(block)\n")


def test_layers_of_several_functions_are_assigned_together(tmp_path: Path) -> None:
    """3 layers each of two functions; the third function has no layers, and stays as it is."""
    change = Program(_SEVERAL, tmp_path).changes()["recompute_nothing"]
    assert change.evidence == "the backward pass goes through 6 layers; first (train.py:5), second (train.py:8)"
    assert change.code == (
        "import jax\n\n# in train.py, after the definition of first\nfirst = jax.checkpoint(first)\n"
        "# in train.py, after the definition of second\nsecond = jax.checkpoint(second)\n"
    )
    assert _num_checkpoints(change) == 6


def test_steps_that_no_code_can_change_have_no_changes(tmp_path: Path) -> None:
    program = Program(_LAYERS, tmp_path)
    assert not list(recomputations(program.step(is_built_in=True)))
    forward = StepSpec(lambda x: jnp.sin(x) @ x, (jax.ShapeDtypeStruct((4, 4), jnp.float32),))
    assert not list(recomputations(program.step(spec=forward)))
    # A framework's jit with shardings would have to be written again.
    source = _NO_LAYERS.replace("def step", "from flax import nnx\n@nnx.jit(in_shardings=sharding)\ndef step")
    sharding = NamedSharding(jax.make_mesh((1,), ("data",)), PartitionSpec())
    path = tmp_path / "sharded.py"
    names: dict[str, Any] = {"__name__": "sharded", "sharding": sharding}
    exec(compile(source, str(path), "exec"), names)
    sharded = replace(program.step(), spec=StepSpec(names["step"], names["args"]))
    assert not list(recomputations(sharded))


_DEEP_BODY = """
import jax, jax.numpy as jnp

def wide(h):
    return jnp.sum(jnp.exp(h[..., None] * jnp.arange(64.0)), axis=-1)

def body(x, w):
    h = jnp.exp(jnp.cos(jnp.sin(x @ w["up"]) @ w["down"]) @ w["up"])
    return x + wide(h @ w["down"]), None

def step(params, x):
    return jax.grad(lambda params: jnp.sum(jax.lax.scan(body, x, params)[0]))(params)

S = jax.ShapeDtypeStruct
args = ({"up": S((16, 16, 16), jnp.float32), "down": S((16, 16, 16), jnp.float32)}, S((32, 16), jnp.float32))
"""


def test_a_function_that_leaves_much_of_a_scan_body_outside_is_not_taken_for_the_body(tmp_path: Path) -> None:
    """It makes nine tenths of the bytes, but the rest is kept in each iteration."""
    program = Program(_DEEP_BODY, tmp_path)
    with checkpointed(None) as functions:
        traced_jaxpr(program.step().spec, H100)
    (layer,) = layers_of(functions[0])
    assert [each.name for each in layer.from_outermost] == ["body", "wide"]
    change = program.changes()["recompute_nothing"]
    assert change.code.endswith("\nbody = jax.checkpoint(body, prevent_cse=False)\n")


def test_of_similar_places_the_one_that_recomputes_least_is_taken() -> None:
    """98 is within 5% of 95, and 101 is not."""
    place = checkpoint_places.Place(
        layers=(), written=(), has_blocks=False, is_loop=False, is_repeated=False, num_blocks=1, num_idle=0,
        num_nested=0, recomputed_flops=300, peak_bytes=95,
    )  # fmt: skip
    similar = replace(place, recomputed_flops=200, peak_bytes=98)
    larger = replace(place, recomputed_flops=100, peak_bytes=101)
    assert checkpoint_places._lowest([place, similar, larger]) is similar
