"""Every option of every command is honoured or refused, whatever it is given with.

`REFUSED` says which options are refused of which subject. All others must be honoured: with them, something that can be
seen is another: what is asked of the compiler, what is printed, or what is written.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from made_compiles import Commands, Ended, made_capture

from memprof.profiler_cli.app import app
from memprof.sources.capture_file import write_capture

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
STEP = "train.py:step_spec"

# By command and subject, the arguments to start from, and the options that are refused; `data` of formats for programs.
_VIEW = {"by", "depth", "top", "sort"}
_WHOLE = {"full", "verbose"}
_COMPILED = {
    *(
        "arguments",
        "preset",
        "overrides",
        "technique",
        "role",
        "phase",
        "target",
        "mesh",
        "hosts",
        "topology",
        "slices",
    ),
    *("timeout", "complete", "cache", "cluster"),
}
REFUSED: dict[tuple[str, str], tuple[list[str], set[str]]] = {
    ("run", "workload"): (["run", "mlp"], {"arguments", "role", "phase", "depth", "top", "editor"}),
    ("run", "step"): (["run", STEP], {"preset", "depth", "top", "editor"}),
    ("run", "csv"): (
        ["run", "mlp", "--format", "csv"],
        {"arguments", "role", "phase", "width", "advise", "verify", "full", "verbose", "pool", *_VIEW, "editor"},
    ),
    ("run", "unsaved"): (
        ["run", "mlp", "--no-save"],
        {"arguments", "role", "phase", "source", "output", "force", "depth", "top", "editor"},
    ),
    ("trace", "workload"): (["trace", "mlp"], {"arguments", "role", "phase", "cache"}),
    ("trace", "compiled"): (["trace", "mlp", "--target", "l4"], {"arguments", "role", "phase", "steps"}),
    ("compare", "workload"): (["compare", "mlp", "-t", "baseline", "-t", "bf16"], {"role", "phase", "depth"}),
    ("compare", "step"): (["compare", STEP, "-t", "baseline", "-t", "bf16"], {"preset", "depth"}),
    ("compare", "module"): (
        ["compare", "mlp", "-t", "baseline", "-t", "bf16", "-t", "donate", "--by", "module"],
        {"role", "phase", "verbose", "pool"},
    ),
    ("compare", "unsaved"): (
        ["compare", "mlp", "-t", "baseline", "-t", "bf16", "--no-save"],
        {"role", "phase", "depth", "source"},
    ),
    ("compare", "captures"): (
        ["compare", "one.memprof", "two.memprof"],
        {*_COMPILED, "framework", "engine", "steps", "jobs", "save", "depth", "source"},
    ),
    ("fit", "workload"): (["fit", "mlp", "--memory", "1MiB"], {"arguments", "role", "phase", "steps", "jobs"}),
    ("fit", "step"): (["fit", STEP, "--memory", "1MiB"], {"preset", "steps", "jobs"}),
    ("fit", "auto"): (
        ["fit", "mlp", "--memory", "1MiB", "-t", "auto"],
        {
            "arguments",
            "role",
            "phase",
            "vary",
            "against",
            "multiple_of",
            "mesh",
            "hosts",
            "topology",
            "slices",
            "engine",
            "framework",
        },
    ),
    ("check", "workload"): (["check", "mlp", "--max", "1GiB"], {"arguments", "role", "phase", "force", "update"}),
    ("check", "step"): (["check", STEP, "--max", "1GiB"], {"preset", "force", "update"}),
    ("check", "capture"): (
        ["check", "one.memprof", "--max", "1GiB"],
        {*_COMPILED, "framework", "force", "update"},
    ),
    ("check", "update"): (
        ["check", "mlp", "--against", "new.json", "--update"],
        {
            "arguments",
            "role",
            "phase",
            "maximum",
            "fits",
            "pool",
            "fail_on",
            "require_effect",
            "format",
            "top",
            "width",
        },
    ),
    ("advise", "capture"): (
        ["advise", "one.memprof"],
        _COMPILED - {"timeout", "complete", "cache", "cluster"},
    ),
    ("import", "programs"): (["import", "dump"], set()),
    ("explain", "log"): (["explain", "run.log"], {"pool"}),
    ("show", "capture"): (["show", "one.memprof"], {"source", "depth", "top", "editor"}),
    ("show", "full"): (["show", "one.memprof", "--full"], {"source", "editor"}),
    ("show", "module"): (["show", "one.memprof", "--by", "module"], {"source", *_WHOLE, "editor"}),
    ("show", "category"): (["show", "one.memprof", "--by", "category"], {"source", "top", "depth", *_WHOLE, "editor"}),
    ("show", "diff"): (["show", "one.memprof", "--diff", "two.memprof"], {"source", *_WHOLE, "editor", "pool"}),
    ("show", "why"): (
        ["show", "one.memprof", "--why", "a"],
        {"source", "diff", "by", "depth", "editor", "pool", *_WHOLE},
    ),
    ("show", "json"): (["show", "one.memprof", "--format", "json"], {"source", "width", *_VIEW, *_WHOLE, "editor"}),
    ("show", "html"): (["show", "one.memprof", "--format", "html"], {"width", *_WHOLE}),
    ("show", "picture"): (
        ["show", "one.memprof", "--format", "svg"],
        {"why", "source", "width", *_VIEW, *_WHOLE, "editor"},
    ),
    ("show", "xprof"): (
        ["show", "one.memprof", "--format", "xprof", "-o", "logs"],
        {"diff", "why", "force", "source", "width", "pool", *_VIEW, *_WHOLE, "editor"},
    ),
}
# How an option is given, and what else has to be there for it to mean anything (`with` and without it).
GIVEN: dict[str, tuple[list[str], list[str]]] = {
    "arguments": (["--", "--mine"], []),
    "preset": (["--preset", "tiny"], []),
    "overrides": (["--set", "batch_size=16"], []),
    "technique": (["-t", "donate"], []),
    "role": (["--role", "state=params"], []),
    "phase": (["--phase", "decode"], []),
    "target": (["--target", "cpu"], []),
    "mesh": (["--mesh", "2"], []),
    "hosts": (["--hosts", "2"], ["--mesh", "data=2"]),
    "topology": (["--topology", "1x4"], ["--target", "v5e", "--mesh", "data=4"]),
    "slices": (["--slices", "2"], ["--target", "v5e", "--mesh", "data=2"]),
    "timeout": (["--timeout", "77"], []),
    "cache": (["--no-cache"], []),
    "steps": (["--steps", "7"], []),
    "complete": (["--complete"], []),
    "cluster": (["--cluster", "tcp://127.0.0.1:9"], []),
    "output": (["-o", "new.memprof"], []),
    "save": (["--no-save"], []),
    "force": (["--force"], ["-o", "there.memprof"]),
    "format": (["--format", "json"], []),
    "advise": (["--advise"], []),
    "verify": (["--verify"], ["--advise"]),
    "depth": (["--depth", "1"], []),
    "top": (["--top", "2"], []),
    "width": (["--width", "60"], []),
    "source": (["--no-source"], []),
    "editor": (["--editor", "none"], []),
    "log_folder": (["--logdir", "elsewhere"], []),
    "view_it": (["--view"], []),
    "reference": (["--reference", "bf16"], []),
    "framework": (["--framework", "torch"], []),
    "engine": (["--engine", "tensorrt"], []),
    "jobs": (["--jobs", "3"], []),
    "by": (["--by", "dtype"], []),
    "sort": (["--sort", "footprint"], []),
    "memory": (["--memory", "2MiB"], []),
    "vary": (["--vary", "hidden_size"], []),
    "reserve": (["--reserve", "50%"], []),
    "pool": (["--pool", "0.5"], []),
    "multiple_of": (["--multiple-of", "64"], []),
    "maximum": (["--max", "1KiB"], []),
    "fits": (["--fits", "h100-80gb"], []),
    "against": (["--against", "two.memprof"], []),
    "fail_on": (["--fail-on", "footprint:+900%"], ["--against", "two.memprof"]),
    "require_effect": (["--require-effect"], ["-t", "bf16"]),
    "update": (["--update"], []),
    "diff": (["--diff", "two.memprof"], []),
    "why": (["--why", "a"], []),
    "program": (["--program", "jit_two"], []),
    "largest": (["--largest", "2"], []),
    "full": (["--full"], []),
    "verbose": (["-v"], []),
    "quiet": (["-q"], []),
}
# What the table above cannot say in one word.
GIVEN_IN: dict[tuple[str, str, str], tuple[list[str], list[str]]] = {
    ("compare", "captures", "reference"): (["--reference", "mlp bf16 (two)"], []),
    ("compare", "step", "reference"): (["--reference", "bf16"], []),
    ("check", "workload", "top"): (["--top", "2"], ["--against", "two.memprof"]),
    ("check", "step", "top"): (["--top", "2"], ["--against", "two.memprof"]),
    ("check", "capture", "top"): (["--top", "2"], ["--against", "two.memprof"]),
    ("compare", "module", "format"): (["--format", "markdown"], []),
    ("show", "module", "format"): (["--format", "markdown"], []),
    ("show", "category", "format"): (["--format", "markdown"], []),
    ("check", "capture", "require_effect"): (["--require-effect"], []),
    ("import", "programs", "role"): (["--role", "arguments[0]=batch"], []),
    ("import", "programs", "output"): (["-o", "captures"], []),
    # Where a report is written, the ending of its file is that of a format.
    **{
        (command, subject, option): (given, others)
        for command, subject in REFUSED
        if command in ("show", "advise", "compare", "explain") and subject != "xprof"
        for ending in [subject if subject in ("json", "html") else "txt"]
        for option, given, others in (
            ("output", ["-o", f"new.{ending}"], []),
            ("force", ["--force"], ["-o", f"there.{ending}"]),
        )
    },
    **{("fit", each, "against"): (["--against", "hidden_size=64,128"], []) for each in ("workload", "step", "auto")},
    ("explain", "log", "program"): (["--program", "one.memprof"], []),
}
# Of pages and captures with the text of sources, and of pictures, which take long to draw: their own tests show it.
ELSEWHERE = {
    ("show", "html", "source"),
    ("show", "html", "editor"),
    *(("run", each, "source") for each in ("workload", "step", "csv")),
    # A slice is one of a TPU, and these start with a GPU.
    *(("trace", "compiled", each) for each in ("topology", "slices")),
    # It needs TensorRT: see tests/integration/test_engines.py.
    *(("run", each, "engine") for each in ("workload", "step", "csv", "unsaved")),
    *(("compare", each, "engine") for each in ("workload", "step", "module", "unsaved")),
    *(("fit", each, "engine") for each in ("workload", "step")),
    # It needs PyTorch: see tests/integration/test_torch_steps.py.
    *(("run", each, "framework") for each in ("workload", "step", "csv", "unsaved")),
    *(("compare", each, "framework") for each in ("workload", "step", "module", "unsaved")),
    *(("fit", each, "framework") for each in ("workload", "step")),
    *(("check", each, "framework") for each in ("workload", "step", "update")),
    # Advice on a capture by hand names no technique, which the tests of advice have.
    *(("run", each, "verify") for each in ("workload", "step", "unsaved")),
    *((each, subject, "source") for each in ("compare", "fit") for subject in ("workload", "step", "module", "auto")),
    ("check", "update", "force"),
    *(("show", "picture", each) for each in ("diff", "output", "force")),
    ("show", "full", "diff"),
    # See the row of --why, which refuses them.
    *(("show", each, "why") for each in ("full", "module", "category", "diff", "why")),
    *(("show", "full", each) for each in ("by", "format", "output", "force", "width")),
    # What is not compiled has nothing to say beside its answer.
    *((*each, "quiet") for each in REFUSED if each[0] in ("show", "advise", "fit") or each == ("check", "capture")),
    ("compare", "captures", "quiet"),
}


def cases() -> Iterator[tuple[str, str, str]]:
    """Every option of every command with every subject of it."""
    for (command, subject), (start, _) in REFUSED.items():
        for param in COMMANDS[command].params:
            is_subject = param.name in ("workload", "what", "capture", "paths", "log") or {
                *param.opts,
                *param.secondary_opts,
            } & set(start)
            if not is_subject and (command, subject, param.name) not in ELSEWHERE:
                yield command, subject, str(param.name)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands find in their folder."""
    folder = tmp_path_factory.mktemp("prepared")
    write_capture(made_capture(techniques=("bf16",)), folder / "one.memprof")
    write_capture(made_capture(techniques=("bf16",), num_layers=5), folder / "two.memprof")
    (folder / "dump").mkdir()
    for name, num_layers in (("one", 6), ("two", 5)):
        program = made_capture(num_layers=num_layers).hlo_proto
        (folder / "dump" / f"module_0001.jit_{name}.sm_9.0_gpu_after_optimizations.hlo.pb").write_bytes(program)
    for ending in ("memprof", "txt", "json", "html"):
        (folder / f"there.{ending}").write_text("mine")
    listed = "".join(f"  {n}. Size: {n}.00M\n     Shape: f32[{n}]\n     =====\n" for n in (1, 2, 3, 4))
    (folder / "run.log").write_text(f"Out of memory while trying to allocate 8192 bytes.\n{listed}")
    (folder / "train.py").write_text("")
    return folder


@pytest.fixture
def memprof(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], prepared: Path) -> Iterator[Commands]:
    folder = prepared.with_name("folder")  # the same for all of them, for some say where it is
    shutil.copytree(prepared, folder)
    yield Commands(monkeypatch, capsys, folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def plain() -> dict[tuple[str, ...], Ended]:
    """How commands ended without the option that a test is about, which is the same for most options of a command."""
    return {}


@pytest.mark.parametrize("start", [pytest.param(start, id="-".join(of)) for of, (start, _) in REFUSED.items()])
def test_a_command_ends_the_same_each_time(
    memprof: Commands, plain: dict[tuple[str, ...], Ended], start: list[str]
) -> None:
    plain[tuple(start)] = memprof(*start)
    assert memprof(*start) == plain[tuple(start)]


def test_every_command_and_option_is_in_the_table() -> None:
    # What `watch`, `serve-plan` and `plan` do with their options is seen where they run: see tests/integration/.
    elsewhere = {"list", "doctor", "cache", "mcp", "watch", "serve-plan", "plan", "export"}
    assert {command for command, _ in REFUSED} | elsewhere == set(COMMANDS)
    options = {str(param.name) for name, _ in REFUSED for param in COMMANDS[name].params}
    assert options - {"workload", "what", "capture", "paths", "log", "help"} == set(GIVEN)


@pytest.mark.parametrize(("command", "subject", "option"), list(cases()))
def test_an_option_is_honoured_or_refused(
    memprof: Commands, plain: dict[tuple[str, ...], Ended], command: str, subject: str, option: str
) -> None:
    start, refused = REFUSED[command, subject]
    given, others = GIVEN_IN.get((command, subject, option), GIVEN[option])
    others = [] if option in refused and option != "arguments" else others
    before = [*start, *(text for text in others if text not in start)]
    if option in refused:
        ended = memprof(*start, *given)
        assert (ended.code, ended.asked, ended.stdout) == (2, (), "")
        assert ended.stderr.startswith("memprof: ")
        assert ended.stderr.count("\n") == 1
        return
    without = plain.get(tuple(before)) or plain.setdefault(tuple(before), memprof(*before))
    with_it = memprof(*before, *given)
    assert with_it.code in (0, 1), with_it.stderr
    assert with_it != without if option != "quiet" else (with_it.stdout, with_it.stderr) == (without.stdout, "")


@pytest.mark.parametrize(
    "command",
    [
        ("run", "mlp", "--steps", "2"),
        ("run", "mlp", "--complete"),
        ("compare", "mlp", "--steps", "2"),
        ("trace", "mlp"),
    ],
    ids=" ".join,
)
def test_the_cache_is_for_what_is_compiled_to_the_plan(memprof: Commands, command: tuple[str, ...]) -> None:
    ended = memprof(*command, "--no-cache")
    assert (ended.code, ended.asked) == (2, ())
    assert "--no-cache applies to steps that are compiled to XLA's plan" in ended.stderr


def test_update_replaces_what_is_no_baseline_only_by_force(memprof: Commands) -> None:
    update = ("check", "one.memprof", "--update", "--against")
    refused = memprof(*update, "train.py")
    assert (refused.code, refused.files["train.py"]) == (2, "")
    assert "train.py is not replaced, because memprof did not write it" in refused.stderr
    forced = memprof(*update, "train.py", "--force", keeps_files=True)
    assert (forced.code, forced.stderr) == (0, "baseline written to train.py\n")
    assert memprof(*update, "train.py").code == 0  # now it is one
