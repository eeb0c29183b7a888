"""`memprof watch`: scripts run as they do without it, and what they compile is found."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from integration.command import Command
from made_compiles import Commands

import memprof as api
from memprof.analysis.pipeline import analyze
from memprof.sources.capture_file import read_capture

pytestmark = pytest.mark.with_one_jax

_STEPS = """
import jax
import jax.numpy as jnp
import optax

optimizer = optax.adam(1e-3)


@jax.jit
def init_state(key):
    params = {"w1": jnp.ones((16, 64)) * jax.random.bits(key), "w2": jnp.ones((64, 4))}
    return params, optimizer.init(params)


def loss_of(params, x, y):
    return jnp.mean((jax.nn.relu(x @ params["w1"]) @ params["w2"] - y) ** 2)


@jax.jit
def train_step(params, opt_state, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    updates, opt_state = optimizer.update(gradients, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


@jax.jit
def eval_step(params, x, y):
    return loss_of(params, x, y)
"""

_TRAIN = """
import argparse
import importlib.util
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from glob import glob
from pathlib import Path

import numpy as np

assert importlib.util.find_spec("jax")  # as libraries do that can work without it
os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX is imported


def child(number):
    sys.exit(number)


def halved(tree, *, factor):
    return tree["scale"] * factor / 2


def num_looks():
    # How often memprof has looked at the arrays: whatever the machine does beside, there are enough of them.
    files = glob(os.path.join(tempfile.gettempdir(), "memprof-*", "live-*.jsonl"))
    return sum(len(Path(file).read_bytes().splitlines()) for file in files)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=8)
    arguments = parser.parse_args()
    forked = multiprocessing.get_context("fork").Process(target=child, args=(5,))
    forked.start()
    forked.join()

    from .steps import eval_step, init_state, train_step
    import jax

    params, opt_state = init_state(jax.random.key(0))
    losses, seen = [], []
    for rows in (arguments.rows, arguments.rows, 3):
        batch = np.ones((rows, 16), "float32"), np.ones((rows, 4), "float32")
        params, opt_state, loss = train_step(params, opt_state, *batch)
    thread = threading.Thread(target=lambda: seen.append(float(eval_step(params, *batch))))
    thread.start()
    thread.join()
    jax.pmap(halved)({"scale": np.ones((1, 2), "float32")}, factor=np.ones((1, 1), "float32"))
    enough = num_looks() + 8
    while num_looks() < enough:  # a training loop that forgets nothing
        losses.append(loss + 1.0)
        time.sleep(0.05)
    print("script:", __name__, os.path.isabs(__file__), sys.argv[1:], forked.exitcode, len(seen))
    sys.exit(3)


if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A script with arguments, relative imports, a fork, a thread, a leak and an exit code; and its folder."""
    command = Command.in_folder(tmp_path_factory.mktemp("watched"))
    package = command.folder / "project"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "steps.py").write_text(_STEPS)
    (package / "train.py").write_text(_TRAIN)
    ended = command("watch", "--keep", "9", "-m", "project.train", "--rows", "8", JAX_DISABLE_MOST_OPTIMIZATIONS="0")
    return ended, command.folder


@pytest.mark.slow
def test_a_script_runs_as_without_memprof(watched: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    ended, _ = watched
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.splitlines()[0] == "script: __main__ True ['--rows', '8'] 5 1"
    assert "Traceback" not in ended.stderr


def test_its_programs_are_told_by_what_they_are_for(watched: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    ended, _ = watched
    rows = {line.split()[0]: line for line in ended.stdout.splitlines() if line.rstrip().endswith(tuple("0123456789"))}
    assert re.search(r"train step .* twice .* steps.py:\d+", rows["train_step"])
    assert re.search(r"init .* once .* steps.py:\d+", rows["init_state"])
    assert re.search(r"eval step .* once .* steps.py:\d+", rows["eval_step"])
    assert "one state       train_step, eval_step" in ended.stdout


def test_what_pmap_was_called_with_has_its_own_names(watched: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    ended, folder = watched
    assert "could not be followed" not in ended.stdout
    capture = read_capture(folder / "watch-train" / "halved-cpu.memprof")
    assert {leaf.path for leaf in capture.arguments} == {"tree['scale']", "factor"}


def test_it_is_said_why_a_step_was_compiled_again(watched: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    ended, _ = watched
    assert "train_step  once: x changed: float32[8,16], then float32[3,16]; so did y" in ended.stdout


def test_arrays_that_become_more_are_named_with_what_holds_them(
    watched: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    ended, _ = watched
    growth = ended.stdout.partition("Growth without a new compile")[2]
    assert re.search(r"float32\[\] +\d+ to \d+ in \d+ s", growth)
    assert "held by losses[...] in main (train.py:" in growth


def test_the_report_of_a_step_is_that_of_the_same_step_given_to_profile(
    watched: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    import jax

    _, folder = watched
    spec = importlib.util.spec_from_file_location("project_steps", folder / "project" / "steps.py")
    assert spec is not None
    assert spec.loader is not None
    steps = importlib.util.module_from_spec(spec)
    sys.modules["project_steps"] = steps
    spec.loader.exec_module(steps)
    state = jax.eval_shape(steps.init_state, jax.random.key(0))
    batch = jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((8, 4), "float32")
    given = api.profile(steps.train_step, *state, *batch, target="cpu", complete=True)
    capture = read_capture(folder / "watch-train" / "train_step-cpu.memprof")
    assert capture.arguments == given.capture.arguments
    assert analyze(capture).categories == given.report.categories


def test_a_script_that_runs_out_of_memory_is_explained(memprof: Command) -> None:
    (memprof.folder / "train.py").write_text(
        "import resource\n"
        "import os, sys\n"
        "assert sys.argv[0] == 'train.py' and __file__ == os.path.abspath('train.py')\n"
        "import jax, jax.numpy as jnp\n"
        "step = jax.jit(lambda w: jnp.tile(w, (4, 1)) * 2.0)\n"
        "w, kept = jnp.ones((1024, 4096)), []\n"
        "w.block_until_ready()\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, -1))\n"
        "for _ in range(40):\n"
        "    kept.append(step(w).block_until_ready())\n"
    )
    ended = memprof("watch", "--keep", "0", "train.py")
    assert ended.returncode == 1
    assert "RESOURCE_EXHAUSTED" in ended.stderr
    assert "memprof/" not in ended.stderr  # nor in the frames of its traceback
    assert "CPU out of memory" in ended.stdout
    assert re.search(r"float32\[4096,4096\] +\d .*held by kept\[...\]", ended.stdout)


def test_a_script_is_ended_when_its_step_has_been_seen(memprof: Command) -> None:
    (memprof.folder / "steps.py").write_text(_STEPS)
    (memprof.folder / "train.py").write_text(
        "import numpy as np\n"
        "from steps import optimizer, train_step\n"
        "params = {'w1': np.ones((16, 64), 'float32'), 'w2': np.ones((64, 4), 'float32')}\n"
        "train_step(params, optimizer.init(params), np.ones((8, 16)), np.ones((8, 4)))\n"
        "print('it has trained')\n"
    )
    ended = memprof("watch", "--target", "h100-80gb", "train.py")
    assert ended.returncode == 0, ended.stderr
    assert "it has trained" not in ended.stdout
    assert re.search(r"train_step +train step", ended.stdout)
    assert (memprof.folder / "watch-train" / "train_step-h100-80gb.memprof").exists()

    # On what is here, where it is compiled before that.
    ended = memprof("watch", "--stop-after", "1", "--format", "json", "train.py")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)  # and not that it has trained
    assert [(each["name"], each["num_compiles"]) for each in found["programs"]] == [("train_step", 1)]
    assert found["ending"]["has_seen_enough"]
    assert (memprof.folder / "watch-train" / "train_step-cpu.memprof").exists()


def test_what_cannot_be_watched_is_refused_in_a_sentence(in_process: Commands) -> None:
    for arguments, words in (
        (["nothing.py"], "there is no script nothing.py"),
        (["--stop-after", "soon", "x.py"], "--stop-after soon is neither"),
        (["--keep", "0", "-o", "captures", "x.py"], "--keep 0 writes none"),
        (["--format", "png", "x.py"], "a watched script is not shown as png"),
        (["--target", "nothing", "x.py"], "There is no target 'nothing'"),
    ):
        ended = in_process("watch", *arguments)
        assert (ended.code, ended.stdout) == (2, "")
        assert words in ended.stderr
