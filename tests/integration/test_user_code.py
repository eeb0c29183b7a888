"""The user's own code on the command line: what is right, and a sentence with their own traceback for what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from integration.command import Command
from printed import write_scripts

_ON_THE_MESH = "    key = jax.random.key(0)  # on the mesh"
_CODE = """
import sys
import jax, jax.numpy as jnp, optax
from flax import linen as nn
import memprof

S = jax.ShapeDtypeStruct
X = S((3, 4), jnp.float32)

def loss(w, x):
    return helper(w, x)

def helper(w, x):
    return jnp.mean(w @ x)

mismatch = memprof.StepSpec(lambda w, x: jax.grad(loss)(w, x), (X, X))
missing_argument = memprof.StepSpec(loss, (X,))
not_a_step = 3

def raising() -> memprof.StepSpec:
    raise ValueError("mine")

def printing(x):
    jax.debug.print("{}", x.sum())
    return x

callback = memprof.StepSpec(printing, (X,))

def on_a_mesh() -> memprof.StepSpec:
    jax.set_mesh(memprof.mesh("h100-80gb", {"data": 2}))
    key = jax.random.key(0)  # on the mesh
    return memprof.StepSpec(loss, (key, X))
kept = []

def leaking(x):
    jax.jit(lambda y: kept.append(y) or y)(x)
    return kept[0] + 1

leak = memprof.StepSpec(leaking, (X,))

class Dropping(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(x))

def without_rng():
    params = jax.eval_shape(Dropping().init, {"params": jax.random.key(0), "dropout": jax.random.key(1)}, X)["params"]
    return memprof.StepSpec(lambda p, x: jax.grad(lambda p: Dropping().apply({"params": p}, x).sum())(p), (params, X))

def sized(width: int, depth=2, name: str | None = None):
    return memprof.StepSpec(lambda x: x * depth, (S((width,), jnp.float32),))

def sharded():
    jax.config.update("jax_num_cpu_devices", 4)
    meshes = [jax.sharding.Mesh(devices, ("d",)) for devices in (jax.devices()[:2], jax.devices()[2:])]
    on = [jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d")) for mesh in meshes]
    return memprof.StepSpec(lambda x, y: (x, y), tuple(S((4,), jnp.float32, sharding=each) for each in on))

def of_arguments():
    return memprof.StepSpec(lambda x: x + 1, (S((len(sys.argv), len(sys.argv[1])), jnp.float32),))

def asking() -> memprof.StepSpec:
    input("how many? ")

def ending() -> memprof.StepSpec:
    class Stop(BaseException):
        def __str__(self):
            return "\x1b[31m" + "enough " * 1000
    raise Stop

def endless() -> memprof.StepSpec:
    import time
    time.sleep(600)

def main():
    open(__file__ + ".ran", "w").close()

def trained():
    def mean_square(params, batch):
        return jnp.mean((batch["x"] @ params["w"]) ** 2)
    params, batch = {"w": S((64, 32), jnp.float32)}, {"x": S((16, 64), jnp.float32)}
    return memprof.TrainSpec(mean_square, params, optax.adam(1e-3), batch)
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    command = Command.in_folder(tmp_path)
    (command.folder / "code.py").write_text(_CODE, encoding="utf-8")
    return command


EACH_JAX = pytest.mark.with_each_jax  # the sentence is JAX's, or one about its exception
# As the installed `memprof` starts: without the working folder on Python's path.
_PROGRAM = (sys.executable, "-P", "-m", "memprof.profiler_cli.main")


def _run(command: Command, *arguments: object) -> tuple[int, str, str]:
    done = command("run", *arguments, "--no-save", "--target", "cpu", program=_PROGRAM)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("name", "code", "sentence", "line"),
    [
        ("mismatch", 3, "dot_general requires contracting dimensions to have the same shape", "jnp.mean(w @ x)"),
        pytest.param(
            "missing_argument",
            3,
            "the arguments in the StepSpec must match the parameters of the function",
            None,
            marks=EACH_JAX,
        ),
        ("not_a_step", 2, "gives an object of type int, not a step", None),
        ("raising", 3, "ValueError: mine", 'raise ValueError("mine")'),
        pytest.param("leak", 3, "tracer leak", None, marks=EACH_JAX),
        (
            "asking",
            3,
            "EOFError: EOF when reading a line (input() cannot be answered here",
            'input("how many? ")',
        ),
        ("ending", 3, "the step could not be built: Stop: [31menough enough", "raise Stop"),
        pytest.param("without_rng", 3, "pass rngs={'dropout': key} to its apply", "nn.Dropout(0.5", marks=EACH_JAX),
        (
            "main",
            2,
            "was not called, because it does not declare that it returns a step: if it does, annotate it",
            None,
        ),
        ("sized", 2, "takes width, without a default: name a function that returns", None),
        pytest.param("sharded", 2, "the shardings of the step use 2 meshes of different devices", None, marks=EACH_JAX),
        (
            "sise",
            2,
            "There is no object of code.py called 'sise' (did you mean 'sized'?): choose from loss, helper",
            None,
        ),
    ],
)
@pytest.mark.with_one_jax
@pytest.mark.slow_cases
def test_a_mistake_gets_one_sentence_and_the_users_own_frames(
    command: Command, name: str, code: int, sentence: str, line: str | None
) -> None:
    returncode, stdout, stderr = _run(command, f"code.py:{name}")
    assert (returncode, stdout) == (code, "")
    last = stderr.splitlines()[-1]
    assert last.startswith("memprof: ")
    assert sentence in last
    assert "memprof/sources" not in stderr
    assert "site-packages" not in stderr
    if line is not None:
        assert line in stderr
    assert not list(command.folder.glob("*.ran"))  # what is no step is not run


# What scripts do, and a profiler must live with; at the end of it there is a step.
_BAD_NEIGHBOUR = """
import atexit, os, signal, subprocess, sys, tempfile, threading, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
    signal.signal(number, signal.SIG_IGN)
print("\\x1b[2J" + "x" * 2**22)
atexit.register(time.sleep, 600)
threading.Thread(target=time.sleep, args=(600,)).start()
if os.fork() == 0:  # one that goes its own way, for ever
    os.setsid()
    while True:
        time.sleep(60)
subprocess.Popen(["sleep", "600"], env={"TMPDIR": os.environ["TMPDIR"]}, start_new_session=True)
folder = tempfile.mkdtemp()
os.chdir(folder)
os.rmdir(folder)
os.umask(0o777)
os.kill(os.getpid(), signal.SIGSTOP)
os.closerange(3, 100)
files = [open(os.path.join(os.path.dirname(__file__), f"mine-{number}"), "x") for number in range(10)]
os.closerange(0, 3)

import jax, memprof

def step(x):
    os.fork()  # both go on
    return x + 1

step_spec = memprof.StepSpec(step, (jax.ShapeDtypeStruct((4,), "float32"),))
"""
# Each of these alone would keep the program from being found.
_OTHER_DUMPS = (
    "--xla_dump_to=theirs --xla_dump_hlo_as_text --xla_dump_hlo_as_html --xla_dump_hlo_module_re=other"
    " --xla_dump_hlo_pass_re=.* --xla_dump_max_hlo_modules=1 --xla_dump_compress_protos --xla_dump_include_timestamp"
)


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_whatever_the_code_does_to_its_process_its_step_is_captured_and_nothing_is_left(command: Command) -> None:
    (command.folder / "bad.py").write_text(_BAD_NEIGHBOUR, encoding="utf-8")
    done = command("run", "bad.py", "--target", "cpu", "-o", "bad.memprof", XLA_FLAGS=_OTHER_DUMPS)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert "bad:step_spec" in done.stdout
    assert command.processes() == []
    assert command.left_behind() == []
    assert {path.stat().st_size for path in command.folder.glob("mine-*")} == {0}
    assert command("show", "bad.memprof").returncode == 0


@pytest.mark.with_one_jax
def test_a_flag_that_xla_does_not_know_is_named(command: Command) -> None:
    done = command("run", "code.py:trained", "--no-save", "--target", "cpu", XLA_FLAGS="--xla_no_such_flag")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "XLA_FLAGS contains a flag that XLA does not support, --xla_no_such_flag" in done.stderr


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_a_flag_with_a_value_that_xla_cannot_read_is_named(command: Command) -> None:
    flags = "--xla_gpu_autotune_level=high"
    done = command("run", "code.py:trained", "--no-save", "--target", "cpu", XLA_FLAGS=flags)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"XLA_FLAGS contains an invalid value, {flags}: correct it" in done.stderr


def test_a_callback_is_compiled_for_an_absent_gpu(command: Command) -> None:
    done = command("run", "code.py:callback", "--no-save", "--target", "h100-80gb")
    assert done.returncode == 0
    assert "The step calls Python once (debug_print code.py:" in done.stdout


def test_a_line_that_computes_on_an_absent_gpu_is_named(command: Command) -> None:
    done = command("run", "code.py:on_a_mesh", "--no-save")
    assert done.returncode == 3
    assert "jax.random.key(0)  # on the mesh" in done.stderr
    assert (
        f"code.py:{_CODE.splitlines().index(_ON_THE_MESH) + 1} tries to create an array on an absent GPU" in done.stderr
    )


@pytest.mark.with_one_jax
def test_an_import_that_fails_is_the_users(command: Command) -> None:
    (command.folder / "broken.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    returncode, _, stderr = _run(command, "broken.py:spec")
    assert returncode == 3
    assert 'broken.py", line 1' in stderr
    assert "install it where memprof runs" in stderr


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_parameters_are_set_with_their_types(command: Command) -> None:
    returncode, stdout, _ = _run(command, "code.py:sized", "--set", "width=1024", "--set", "name=none", "-v")
    assert returncode == 0
    assert "footprint 8.00 KiB" in stdout  # 1024 float32 in and out
    assert "width=1024" in stdout
    returncode, _, stderr = _run(command, "code.py:sized", "--set", "width=big")
    assert (returncode, "width expects a whole number" in stderr) == (2, True)
    returncode, _, stderr = _run(command, "code.py:sized", "--set", "height=3")
    assert (returncode, "There is no parameter of code:sized 'height'" in stderr) == (2, True)


@pytest.mark.with_one_jax
def test_arguments_after_two_dashes_reach_the_code(command: Command) -> None:
    done = command("run", "code.py:of_arguments", "--no-save", "--target", "cpu", "--", "--flag", "-x", "3")
    assert done.returncode == 0, done.stderr
    assert "footprint 192 B" in done.stdout  # (4, 6) float32 in and out: the file and three arguments; "--flag"


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_modules_named_like_ours_and_like_pythons_are_the_users(command: Command) -> None:
    for name in ("analysis", "reports", "workloads", "capture"):
        (command.folder / f"{name}.py").write_text("WIDTH = 5\n", encoding="utf-8")
    (command.folder / "types.py").write_text("raise RuntimeError('not for memprof')\n", encoding="utf-8")
    (command.folder / "train.py").write_text(
        "import analysis, capture, jax, memprof, reports, workloads\n"
        "spec = memprof.StepSpec(lambda x: x * 2.0, (jax.ShapeDtypeStruct((analysis.WIDTH,), 'float32'),))\n",
        encoding="utf-8",
    )
    for reference in ("train.py:spec", "train:spec"):
        returncode, stdout, stderr = _run(command, reference)
        assert returncode == 0, stderr
        assert "footprint 40 B" in stdout


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_what_cannot_be_told_of_the_arguments_is_said_until_it_is_given(command: Command) -> None:
    (command.folder / "tables.py").write_text(
        "import jax, memprof\n"
        "S = jax.ShapeDtypeStruct\n"
        "tables = {'one': S((2, 3), 'float32'), 'two': S((7,), 'int32')}\n"
        "spec = memprof.StepSpec(lambda tables, x: x.sum() * tables['one'].sum() + tables['two'].sum(),"
        " (tables, S((4, 3), 'float32')))\n",
        encoding="utf-8",
    )
    _, stdout, _ = _run(command, "tables.py:spec")
    assert "tables['one'], tables['two'] (52 bytes)" in " ".join(stdout.split())  # 2*3*4 + 7*4
    _, stdout, _ = _run(command, "tables.py:spec", "--format", "json")
    (doubt,) = json.loads(stdout)["doubts"]
    assert "could not be inferred" in doubt
    _, stdout, _ = _run(command, "tables.py:spec", "--role", "tables=batch", "--format", "json")
    assert json.loads(stdout)["doubts"] == []


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_a_step_that_takes_too_long_is_given_up(command: Command) -> None:
    returncode, _, stderr = _run(command, "code.py:endless", "--timeout", "4")
    assert returncode == 3
    assert "not done after 4 s" in stderr
    assert not command.processes()


@pytest.mark.with_one_jax
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nowhere.py:spec",), "there is no file nowhere.py"),
        (("code.py:trained", "--preset", "tiny"), "--preset is for built-in workloads"),
        (("code.py:trained", "--role", "state"), "'state' has no role"),
        (("code.py:trained", "-t", "scan"), "Technique 'scan' does not apply to code:trained"),
        (("code.py:trained", "-t", "remat-mlp"), "changes modules of the model itself"),
        (("code.py:mismatch", "-t", "bf16"), "is a finished StepSpec, a step"),
        (("mlp", "--role", "state=params"), "--role is for your own step"),
        (("mlp", "extra"), "mlp takes no arguments, but got extra"),
    ],
)
@pytest.mark.slow_cases
def test_what_does_not_apply_is_said(command: Command, arguments: tuple[str, ...], sentence: str) -> None:
    returncode, _, stderr = _run(command, *arguments)
    assert returncode == 2
    assert sentence in stderr


@pytest.mark.with_one_jax
def test_techniques_apply_to_a_users_loss(command: Command) -> None:
    rows = ["baseline", "donate", "bf16", "accum4", "remat", "opt=sgd"]
    options = [option for row in rows for option in ("-t", row)]
    done = command("compare", "code.py:trained", *options, "--target", "cpu", "--no-save", "--format", "json")
    assert done.returncode == 0, done.stderr
    comparison = json.loads(done.stdout)
    by_row = {row["techniques"][0]: row for row in comparison["rows"]}
    assert set(by_row) == set(rows)
    # 64 * 32 float32 parameters; Adam's two moments of them and a count.
    assert by_row["baseline"]["categories"]["params"] == 8192
    assert by_row["baseline"]["categories"]["optimizer_state"] == 2 * 8192 + 4
    assert by_row["opt=sgd"]["categories"]["optimizer_state"] == 0
    assert by_row["donate"]["categories"]["outputs"] < by_row["baseline"]["categories"]["outputs"] - 3 * 8192 + 1024


@pytest.mark.with_one_jax
def test_the_largest_batch_of_a_script_that_nobody_has_touched(memprof: Command) -> None:
    """Of 10 MiB, 6 MiB and 196 bytes are weights, two moments of each, and what follows them: 4 x 256 x 256 x 4 x 6.

    Each example takes 6 x 256 x 4 = 6,144 bytes: itself, four results of tanh, a cotangent. 4,194,108 / 6,144 = 682.6
    """
    write_scripts(memprof.folder)
    fitted = memprof("fit", "loop.py", "--target", "cpu", "--memory", "10MiB", "--no-save", "--format", "json")
    assert fitted.returncode == 0, fitted.stderr
    found = json.loads(fitted.stdout)
    assert (found["field"], found["value"], found["next_value"]) == ("batch_size", 682, 683)
    assert found["footprint_bytes"] == 6 * 1024**2 + 196 + 682 * 6144
    assert found["command"] == "memprof run loop.py --target cpu --set batch_size=682"
    assert not list(memprof.folder.glob("*.memprof"))
