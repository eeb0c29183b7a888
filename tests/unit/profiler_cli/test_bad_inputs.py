"""What a user can get wrong: every command says so in one sentence, at once and before anything is compiled."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from made_compiles import Commands, made_capture

from memprof.sources.capture_file import write_capture

HUGE = str(10**30)
LONG = "x" * 300
ENDLESS = "9" * 5000
ESCAPE = "\x1b[31mred\x07"

BUILDING = (
    ["run", "mlp"], ["trace", "mlp"], ["compare", "mlp"], ["fit", "mlp", "--memory", "1GiB"],
    ["check", "mlp", "--max", "1GiB"],
)  # fmt: skip
SHOWING = (["show", "one.memprof"], ["advise", "one.memprof"])
BAD_OF_ALL = (
    ["--no-such-option"], ["--format", "xlm"], ["--format", ""], ["--format", LONG], ["--format", "\n"],
    ["--width", "0"], ["--width", "39"], ["--width", "-1"], ["--width", HUGE], ["--width", "1000000"],
    ["--width", "wide"], ["--width", ""], ["--width", ENDLESS], ["--width", "²"], ["--format", ESCAPE],
    ["--width", "80", "--width", "90"], ["--format", "csv", "--width", "80"],
)  # fmt: skip
BAD_OF_BUILDING = (
    ["--preset", "huge"], ["--preset", ""], ["--preset", LONG], ["--preset", ESCAPE],
    ["--set", ""], ["--set", "="], ["--set", "batch_size"], ["--set", "batch_size="], ["--set", "=3"],
    ["--set", "batch_size=0"], ["--set", "batch_size=-1"], ["--set", "batch_size=1.5"], ["--set", "batch_size=many"],
    ["--set", f"batch_size={ENDLESS}"], ["--set", f"{LONG}=1"], ["--set", "optimizer=none"],
    ["--set", "batch_size=1", "--set", "batch_size=2"], ["--set", "compute_dtype=float8"],
    ["-t", ""], ["-t", "+"], ["-t", "bf16++donate"], ["-t", "bf15"], ["-t", LONG], ["-t", "bf16+bf16"],
    ["-t", f"accum{ENDLESS}"], ["-t", "accum0"], ["-t", ESCAPE], ["-t", "\n"], ["-t", "opt="], ["-t", "opt=adamx"],
    ["--target", "h100"], ["--target", ""], ["--target", LONG], ["--target", "nothing.pbtxt"], ["--target", "."],
    ["--target", "/dev/null"], ["--target", "cpu", "--target", "l4"],
    ["--timeout", "0"], ["--timeout", "-1"], ["--timeout", "inf"], ["--timeout", "nan"], ["--timeout", HUGE],
    ["--timeout", "1e300"], ["--timeout", "soon"], ["--timeout", ""],
    ["--role", "x=params"], ["--role", ""],
    ["--mesh", ""], ["--mesh", "fsdp"], ["--mesh", "0"], ["--mesh", "-1"], ["--mesh", "fsdp=0"], ["--mesh", "fsdp=2,"],
    ["--mesh", "fsdp=2,fsdp=2"], ["--mesh", f"fsdp={ENDLESS[:4000]}"], ["--mesh", HUGE], ["--mesh", "99999999"],
    ["--mesh", "8", "--hosts", "3"], ["--mesh", "8", "--target", "cpu"], ["--mesh", "8", "--target", "local"],
    ["--hosts", "2"], ["-t", "dp"], ["--mesh", "fsdp=8", "-t", "dp"], ["--mesh", "dp=7", "-t", "dp"],
)  # fmt: skip
BAD_OF_ONE: tuple[tuple[list[str], tuple[list[str], ...]], ...] = (
    (
        [],
        (
            ["run"], ["runn"], ["diff", "a", "b"], ["train.py"], ["train.py", "--lr", "1"],
            ["list", "things"], ["list", "targets", "more"], ["--bla"],
            ["cache"], ["cache", "things"],
            ["doctor", "x"],
            ["run", ""], ["run", " "], ["run", "gpt"], ["run", LONG], ["run", "nothing.py:f"],
            ["run", f"{LONG}.py:f"], ["run", "a b:c"], ["run", ":"], ["run", "x:"], ["run", ":y"],
            ["run", "train.py:1"],
            ["run", "/dev/null:f"], ["run", "mlp", "more"], ["run", "mlp", "--", "--mine"], ["run", "one.memprof"],
            ["trace", "one.memprof"], ["fit", "one.memprof"], ["run", f"{ESCAPE}:f"],
            ["show", ""], ["show", "nothing.memprof"], ["show", "."], ["show", LONG], ["show", "text.memprof"],
            ["show", "empty.memprof"], ["show", "/dev/null"], ["advise", "nothing.memprof"],
            ["advise", "text.memprof"],
            ["compare"], ["compare", ""], ["compare", "one.memprof", "nothing.memprof"],
            ["compare", "one.memprof", "text.memprof"], ["compare", "mlp", "transformer"],
            ["compare", "one.memprof", "mlp"],
            ["check"], ["check", "mlp"], ["check", ""], ["check", "nothing.memprof", "--max", "1GiB"],
            ["check", "text.memprof", "--max", "1GiB"],
            ["import"], ["import", ""], ["import", "nothing"], ["import", "."], ["import", "/dev/null"],
            ["explain"], ["explain", ""], ["explain", "nothing"], ["explain", "."], ["explain", LONG],
            ["explain", "/dev/null"], ["explain", "train.py"], ["explain", "train.py", "--program", "nothing"],
            ["explain", "train.py", "--program", LONG],
            ["compare", LONG], ["compare", f"{LONG}.memprof", f"{LONG}.memprof"], ["compare", f"{LONG}.py:f"],
            ["check", LONG, "--max", "1GiB"], ["check", f"{LONG}.memprof", "--max", "1GiB"], ["trace", LONG],
            ["fit", LONG, "--memory", "1GiB"], ["watch", LONG], ["watch", f"{LONG}.py"], ["watch", f"{LONG}/x.py"],
            ["advise", f"{LONG}.memprof"], ["run", f"{LONG}/{LONG}.py:f"],
            ["import", LONG], ["import", "text.memprof"], ["import", "empty.memprof"], ["import", "one.memprof"],
        ),
    ),
    (
        ["run", "mlp"],
        (
            ["-o", ""], ["-o", "."], ["-o", "text.memprof"], ["-o", "no/such/folder"], ["-o", LONG],
            ["-o", f"{LONG}/x"],
            ["-o", "/dev/null", "--force"], ["-o", "train.py/x"], ["--no-save", "-o", "x"], ["--no-save", "--force"],
            ["--force"], ["--verify"], ["--steps", "0"], ["--steps", HUGE], ["--steps", "few"],
            ["--steps", "1", "--target", "l4"], ["--steps", "1", "--complete"],
            ["--depth", "0"], ["--depth", HUGE], ["--top", "0"], ["--top", HUGE], ["--top", ""],
            ["--format", "json", "--depth", "3"], ["--format", "svg", "--top", "3"], ["-o", "x", "-o", "y"],
        ),
    ),
    (
        ["trace", "mlp"],
        (
            ["--logdir", ""], ["--logdir", "train.py"], ["--logdir", LONG], ["--logdir", "train.py/logs"],
            ["--steps", "0"], ["--steps", HUGE], ["--steps", "3", "--target", "l4"], ["--top", "0"],
            ["--depth", HUGE],
        ),
    ),
    (
        ["compare", "mlp"],
        (
            ["--reference", "zzz"], ["--reference", ""], ["--reference", LONG],
            ["-t", "bf16", "--reference", "baseline"],
            ["-t", "bf16", "-t", "bf16"], ["-o", "train.py"], ["-o", "train.py/rows"], ["-o", ""], ["-o", LONG],
            ["--no-save", "-o", "rows"], ["--jobs", "0"], ["--jobs", HUGE],
            ["--steps", "0"],
            ["--steps", "3", "--target", "l4"], ["--by", "buffer"], ["--by", ""], ["--sort", "size"],
            ["--depth", "2"],
            ["--steps", "3", "--complete"],
            ["--steps", "3", "--cluster", "tcp://127.0.0.1:9"],
        ),
    ),
    (
        ["compare", "one.memprof", "two.memprof"],
        (
            ["--preset", "tiny"], ["--set", "batch_size=3"], ["-t", "bf16"], ["--role", "x=params"],
            ["--target", "cpu"],
            ["--timeout", "3"], ["--steps", "3"], ["--jobs", "2"], ["-o", "rows"], ["--no-save"],
            ["--reference", "zzz"],
        ),
    ),
    (
        ["fit", "mlp"],
        (
            ["--memory", ""], ["--memory", "lots"], ["--memory", "0GiB"], ["--memory", "-1GiB"], ["--memory", "40"],
            ["--memory", f"{HUGE}GiB"], ["--memory", f"{ENDLESS}GiB"], ["--memory", "1e3GiB"], ["--target", "cpu"],
        ),
    ),
    (
        ["fit", "mlp", "--memory", "1GiB"],
        (
            ["--vary", ""], ["--vary", "zzz"], ["--vary", "optimizer"], ["--vary", LONG], ["--reserve", ""],
            ["--reserve", "100%"],
            ["--reserve", "2GiB"], ["--reserve", "some"], ["--reserve", f"{ENDLESS}%"], ["--reserve", "-1%"],
            ["--multiple-of", "0"], ["--multiple-of", HUGE], ["--multiple-of", "-3"], ["--multiple-of", "x"],
            ["--steps", "3"], ["--jobs", "3"], ["-t", "auto", "--vary", "batch_size"],
            ["-t", "auto", "--multiple-of", "2"],
            ["-t", "auto+bf16"], ["-t", "auto", "--steps", "0"], ["-t", "auto", "--jobs", HUGE], ["-o", "train.py"],
            ["-t", "auto", "--steps", "3", "--target", "l4"], ["--no-save", "-o", "rows"],
            ["-t", "auto", "--memory", "2GiB"],
        ),
    ),
    (
        ["check", "mlp"],
        (
            ["--max", ""], ["--max", "lots"], ["--max", f"{ENDLESS}GiB"], ["--max", "0B"], ["--fits", "cpu"],
            ["--fits", "h1000"],
            ["--fits", ""], ["--against", ""], ["--against", "nothing.json"], ["--against", "train.py"],
            ["--against", "."],
            ["--against", "text.memprof"], ["--against", LONG], ["--against", f"{LONG}.memprof"],
            ["--update"], ["--update", "--against", "train.py"],
            ["--update", "--against", "text.memprof"], ["--update", "--against", "no/such/base.json"],
            ["--update", "--against", "."], ["--update", "--against", LONG],
            ["--update", "--against", "new.json", "--max", "1GiB"],
            ["--update", "--against", "new.json", "--fail-on", "footprint:+2%"], ["--require-effect"],
            ["--update", "--against", "new.json", "--format", "json"],
            ["--update", "--against", "/dev/null", "--force"],
            ["--against", "one.memprof", "--fail-on", "size:+2%"],
            ["--against", "one.memprof", "--fail-on", "footprint"],
            ["--against", "one.memprof", "--fail-on", f"footprint:+{ENDLESS}%"], ["--fail-on", "footprint:+2%"],
            ["--max", "1GiB", "--force"], ["--max", "1GiB", "--format", "svg"], ["--max", "1GiB", "--top", "0"],
        ),
    ),
    (
        ["check", "one.memprof", "--max", "1GiB"],
        (
            ["-t", "bf16"], ["--target", "cpu"], ["--preset", "tiny"], ["--set", "batch_size=3"],
            ["--role", "x=params"],
            ["--timeout", "3"], ["--", "--mine"],
        ),
    ),
    (
        ["show", "one.memprof"],
        (
            ["--by", "size"], ["--by", ""], ["--depth", "0"], ["--depth", HUGE], ["--top", HUGE], ["--force"],
            ["-o", ""],
            ["-o", "."], ["-o", "text.memprof"], ["-o", LONG], ["-o", "no/such/report.html"],
            ["--diff", "nothing.memprof"],
            ["--diff", "text.memprof"], ["--diff", ""], ["--diff", "."], ["--format", "xprof"], ["--no-source"],
            ["--format", "xprof", "-o", "train.py"], ["--format", "xprof", "-o", "logs", "--diff", "two.memprof"],
            ["--format", "xprof", "-o", "logs", "--force"], ["--format", "xprof", "-o", "logs", "--top", "3"],
            ["--by", "category", "--depth", "3"], ["--format", "json", "--by", "module"],
            ["--format", "html", "--width", "80"],
        ),
    ),
    (
        [],
        (
            ["plan", ""], ["plan", LONG], ["plan", f"{LONG}.py:f"], ["plan", "one.memprof"], ["plan", "nothing.py:f"],
            ["plan", f"{LONG}.memprof"], ["advise", LONG], ["advise", f"{LONG}.py:f"], ["advise", "nothing.py:f"],
            ["advise", ESCAPE], ["export"], ["export", ""], ["export", LONG], ["export", f"{LONG}.py:f"],
            ["export", "one.memprof"], ["serve-plan"], ["serve-plan", ""], ["serve-plan", LONG], ["serve-plan", "mlp"],
            ["serve-plan", f"{LONG}.py:f"], ["serve-plan", "one.memprof"],
            ["import", f"{LONG}.pickle"], ["import", f"{LONG}.prof"], ["import", f"{LONG}/memory.prof"],
            ["import", "nothing.prof"],
            ["import", "text.pickle", "one.memprof"], ["import", "text.pickle", "text.prof"], ["import", ESCAPE],
            ["import", "text.pickle", "-o", f"{LONG}.memprof"], ["import", "text.pickle", "-o", f"{LONG}/x.memprof"],
            ["import", "text.pickle", "-o", LONG], ["import", "text.pickle", "-o", "train.py/x.memprof"],
            ["import", "text.pickle", "--target", LONG], ["import", "text.pickle", "--target", "local"],
            ["import", "text.pickle", "--largest", "1"],
            ["import", "text.prof", "-o", LONG], ["import", "text.prof", "-o", f"{LONG}.html"],
            ["run", f"{LONG}.onnx", "--engine", "tensorrt"], ["run", "mlp", "--engine", LONG],
            ["run", "mlp", "--engine", ""], ["run", "nothing.onnx", "--engine", "tensorrt"],
            ["run", "train.py", "--engine", "tensorrt"],
            ["fit", f"{LONG}.py:f", "--framework", "torch", "--memory", "1GiB"],
            ["run", f"{LONG}.py:f", "--framework", "torch"], ["run", "mlp", "--framework", LONG],
            ["run", "mlp", "--framework", ""], ["trace", f"{LONG}.py:f", "--framework", "torch"],
            ["show", "one.memprof", "--diff", LONG], ["show", "one.memprof", "--format", "xprof", "-o", LONG],
            ["show", "one.memprof", "--format", "pprof", "-o", f"{LONG}.pb.gz"],
            ["explain", "train.py", "--program", f"{LONG}.memprof"],
        ),
    ),
    (
        ["plan", "train.py:mine"],
        (
            ["--memory", ""], ["--memory", "lots"], ["--memory", "0B"], ["--memory", f"{ENDLESS}GiB"], ["-o", LONG],
            ["-o", f"{LONG}.json"], ["-o", "."], ["-o", "no/such/plan.json"], ["--format", LONG], ["--format", "onnx"],
            ["--target", LONG], ["-t", LONG], ["--preset", LONG],
        ),
    ),
    (
        ["advise", "train.py:mine"],
        (
            ["-o", LONG], ["-o", f"{LONG}.html"], ["-o", "."], ["-o", "no/such/r.html"], ["--format", "onnx"],
            ["--target", LONG], ["-t", LONG], ["--pool", ""], ["--pool", f"{ENDLESS}%"], ["--pool", "lots"],
        ),
    ),
    (
        ["export", "mlp", "--preset", "tiny", "--format", "onnx"],
        (
            ["-o", ""], ["-o", LONG], ["-o", f"{LONG}/x.onnx"], ["-o", "."], ["-o", "no/such/m.onnx"],
            ["-o", "train.py/m.onnx"], ["-o", "text.onnx"], ["-o", "/dev/null", "--force"], ["--format", "json"],
            ["-t", LONG], ["--set", f"{LONG}=1"], ["--preset", LONG],
        ),
    ),
)  # fmt: skip
BAD = [
    *([*start, *more] for start in (*BUILDING, *SHOWING) for more in BAD_OF_ALL),
    *([*start, *more] for start in BUILDING for more in BAD_OF_BUILDING),
    *([*start, *more] for start, all_more in BAD_OF_ONE for more in all_more),
]


@pytest.fixture
def memprof(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Commands:
    write_capture(made_capture(techniques=("bf16",)), tmp_path / "one.memprof")
    write_capture(made_capture(techniques=("bf16",), num_layers=5), tmp_path / "two.memprof")
    (tmp_path / "text.memprof").write_text("no capture")
    for ending in ("pickle", "prof", "onnx"):
        (tmp_path / f"text.{ending}").write_text("nothing of the kind")
    (tmp_path / "empty.memprof").touch()
    (tmp_path / "train.py").write_text("mine = 1\n")
    return Commands(monkeypatch, capsys, tmp_path)


def test_there_are_enough_of_them() -> None:
    assert len({tuple(each) for each in BAD}) == len(BAD) >= 300


@pytest.mark.parametrize("part", range(8))
def test_a_mistake_is_one_sentence_at_once(memprof: Commands, part: int) -> None:
    before = memprof("list", "targets").files
    problems = []
    for arguments in BAD[part::8]:
        began = time.process_time()
        ended = memprof(*arguments)
        seconds = time.process_time() - began
        is_one_sentence = (
            ended.stderr.startswith("memprof: ") and ended.stderr.endswith(".\n") and ended.stderr.count("\n") == 1
        )
        is_clean = len(ended.stderr) < 2500 and "\x1b[31m" not in ended.stderr and "Traceback" not in ended.stderr
        is_clean = is_clean and "\\n\\t" not in ended.stderr  # Typer's lines, in one of ours
        right = ended.code == 2 and is_one_sentence and is_clean and not ended.stdout and not ended.asked
        files, before = before, ended.files
        if not right or ended.files != files or seconds > 5:
            problems.append((arguments, ended.code, ended.stderr[-600:], ended.asked[:1], f"{seconds:.1f} s"))
    assert not problems, "\n".join(map(str, problems))


def test_an_option_without_its_value_is_looked_up_in_the_help_of_its_command(memprof: Commands) -> None:
    assert memprof("run", "mlp", "--target").stderr.endswith("; see `memprof run --help`.\n")
