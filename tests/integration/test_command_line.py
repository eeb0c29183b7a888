"""The command line as a process: what it prints, what it writes, how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from integration.command import MAIN

from memprof.sources.jax.targets.nvidia.catalogue import gpus
from memprof.workloads import registry

pytestmark = pytest.mark.with_one_jax

SMALL = ("run", "mlp", "--preset", "tiny", "--target", "cpu")
SCHEMA = Path(__file__).parents[2] / "docs" / "schema" / "report.schema.json"

# Put before everything else: a Python in which JAX and what rests on it cannot be imported.
WITHOUT_JAX = "import sys\nsys.modules.update(dict.fromkeys(('jax', 'jaxlib', 'flax', 'optax')))\n"
# A Python that finds nothing of the `deviceless` extra, whatever is installed.
WITHOUT_DEVICELESS = """
import importlib.metadata, pathlib, shutil
version, which, is_file = importlib.metadata.version, shutil.which, pathlib.Path.is_file

def no_version(name):
    if name.startswith("jax-cuda"):
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)

importlib.metadata.version = no_version
shutil.which = lambda name, *args, **kwargs: None if name == "ptxas" else which(name, *args, **kwargs)
pathlib.Path.is_file = lambda path: path.name not in ("ptxas", "libdevice.10.bc") and is_file(path)
"""
# A Python in which a library prints when it is imported, as a user's code may.
PRINTING_WHEN_IMPORTED = """
import sys
sys.addaudithook(lambda event, args: print("hello") if event == "import" and args[0] == "optax" else None)
"""
# Runs several commands in one process, and ends with the first exit code that is not 0.
ONE_AFTER_THE_OTHER = """
import json, sys
from memprof.profiler_cli import command_line
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["memprof", *arguments]
    if code := command_line._run():
        sys.exit(code)
"""
# Starts a program that must obey the permissions of files, even as root: without the capability to ignore them
# (PR_CAPBSET_DROP is 24, CAP_DAC_OVERRIDE 1); 99 where root may not give that up.
OBEYING_PERMISSIONS = (
    sys.executable,
    "-c",
    "import ctypes, os, sys\n"
    "if ctypes.CDLL(None).prctl(24, 1, 0, 0, 0) and os.geteuid() == 0: sys.exit(99)\n"
    "os.execv(sys.argv[1], sys.argv[1:])",
    *MAIN,
)


def assert_one_sentence(stderr: str, *fragments: str) -> None:
    assert stderr.startswith("memprof: ")
    assert stderr.endswith(".\n")
    assert stderr.count("\n") == 1
    assert "Traceback" not in stderr
    for fragment in fragments:
        assert fragment in stderr


def without_own_time(text: str) -> str:
    """A report without how long the analysis took, which each command measures for itself."""
    return re.sub(r'analysis [\d.]+ m?s|"analysis_seconds": [\d.e-]+', "", text)


def imported_modules(stderr: str) -> set[str]:
    """The top-level packages that `python -X importtime` tells of."""
    names = (line.rpartition("|")[2].strip() for line in stderr.splitlines() if line.startswith("import time:"))
    return {name.partition(".")[0] for name in names}


class TestWithoutWork:
    def test_help_lists_the_commands(self, memprof):
        ended = memprof("--help")
        assert (ended.returncode, ended.stderr) == (0, "")
        for name in ("run", "show", "list", "doctor"):
            assert re.search(rf"\b{name}\b", ended.stdout)

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--help"],
            ["run", "--help"],
            ["list", "workloads"],
            ["list", "techniques"],
            ["list", "targets"],
            ["list", "optimizers"],
            ["run", "mlp", "--preset", "huge"],
        ],
        ids=" ".join,
    )
    def test_what_compiles_nothing_imports_no_jax(self, memprof, arguments):
        ended = memprof(*arguments, program=(sys.executable, "-X", "importtime", *MAIN[1:]))
        imported = imported_modules(ended.stderr)
        assert "typer" in imported
        assert not imported & {"jax", "jaxlib", "flax", "optax"}

    def test_version(self, memprof):
        assert re.fullmatch(r"memprof \d+\.\d+\S*\n", memprof("--version").stdout)

    @pytest.mark.parametrize(
        ("kind", "names"),
        [
            ("workloads", [workload.name for workload in registry.workloads()]),
            ("techniques", [technique.usage for technique in registry.techniques()]),
            ("targets", [*gpus(), "local", "cpu"]),
            ("optimizers", [optimizer.name for optimizer in registry.optimizers()]),
        ],
    )
    def test_list_has_a_row_for_each(self, in_process, kind, names):
        ended = in_process("list", kind)
        assert (ended.code, ended.stderr) == (0, "")
        first_words = [line.split(" ")[0] for line in ended.stdout.splitlines()]
        assert set(names) <= set(first_words)

    @pytest.mark.parametrize("columns", ["30", "80"])
    def test_no_name_in_a_list_is_broken_however_narrow_the_terminal(self, in_process, monkeypatch, columns):
        monkeypatch.setenv("COLUMNS", columns)
        first_words = {line.split(" ")[0] for line in in_process("list", "targets").stdout.splitlines()}
        assert {*gpus(), "local", "cpu"} <= first_words
        presets = in_process("list", "workloads").stdout.splitlines()
        assert max(map(len, presets)) <= 80
        assert all(any(name in line for line in presets) for each in registry.workloads() for name in each.presets)

    def test_an_explanation_is_written_as_the_ending_of_its_file_says(self, in_process):
        (in_process.folder / "LOG").write_text("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3000 bytes.")
        ended = in_process("explain", "LOG", "-o", "e.html")
        assert (ended.code, ended.stdout, ended.stderr) == (0, "", "report written to e.html\n")
        assert "e.html" in ended.files

    def test_serving_agents_without_the_sdk_is_one_sentence(self, in_process, monkeypatch):
        monkeypatch.setitem(sys.modules, "mcp.server", None)
        ended = in_process("mcp")
        assert ended.code == 2
        assert_one_sentence(ended.stderr, "serving agents needs the MCP SDK", 'pip install "jax-memprof[mcp]"')
        assert ended.stderr.count("memprof") == 2  # its own name, and what is to be installed

    @pytest.mark.slow
    def test_doctor_compiles_for_real(self, memprof):
        ended = memprof("doctor")
        assert (ended.returncode, ended.stderr) == (0, "")
        assert re.search(r"compile for cpu\s+works", ended.stdout)
        assert re.search(r"compile for h100-80gb\s+works", ended.stdout)
        assert memprof.left_behind() == []

    def test_doctor_says_what_to_install(self, memprof):
        ended = memprof("doctor", **memprof.run_before_start(WITHOUT_DEVICELESS))
        assert ended.returncode == 0
        assert re.search(r"missing\s+ptxas", ended.stdout)
        assert 'pip install "jax-memprof[deviceless]"' in ended.stderr


class TestRun:
    def test_the_latest_capture_has_the_plain_name_and_show_prints_the_same(self, memprof):
        (memprof.folder / "mlp-tiny-cpu.memprof").write_text("mine")
        ran = memprof(*SMALL)
        assert ran.returncode == 0
        assert ran.stderr.count("\n") == 1
        assert "capture written to mlp-tiny-cpu.memprof" in ran.stderr
        assert (memprof.folder / "mlp-tiny-cpu-1.memprof").read_text() == "mine"
        names = ["mlp-tiny-cpu-1.memprof", "mlp-tiny-cpu.memprof"]
        assert sorted(path.name for path in memprof.folder.iterdir()) == names
        assert memprof.left_behind() == []

        shown = memprof("show")
        assert (shown.returncode, shown.stderr) == (0, "")
        # The command that ran knows the step, so it names the one that compiles changes of it.
        of_step, of_capture = "memprof advise mlp --preset tiny --target cpu", "memprof advise mlp-tiny-cpu.memprof"
        assert ran.stdout.count(of_step) == shown.stdout.count(of_capture) == 1
        assert without_own_time(shown.stdout) == without_own_time(ran.stdout.replace(of_step, of_capture))

    def test_a_log_has_a_line_for_each_stage_unless_it_is_to_be_quiet(self, memprof):
        running = memprof.start(*SMALL, "--no-save")
        lines = running.communicate()[1].splitlines()
        assert {"mlp: tracing ...", "mlp: lowering ...", "mlp: analysing ..."} <= set(lines)
        assert all(line.startswith("mlp: ") and line.endswith(" ...") for line in lines)
        assert memprof.start(*SMALL, "-q").communicate()[1] == ""

    def test_json_is_alone_on_stdout_and_keeps_to_the_schema(self, memprof):
        ended = memprof(*SMALL, "--no-save", "--format", "json")
        assert (ended.returncode, ended.stderr) == (0, "")
        report = json.loads(ended.stdout)
        jsonschema.validate(report, json.loads(SCHEMA.read_text(encoding="utf-8")))
        assert (report["workload"], report["target"]["name"]) == ("mlp", "cpu")
        assert sum(report["categories"].values()) == report["footprint_bytes"]
        assert list(memprof.folder.iterdir()) == []

    def test_force_overwrites(self, memprof):
        path = memprof.folder / "old.memprof"
        path.write_text("old")
        assert memprof(*SMALL, "-o", path, "--force").returncode == 0
        assert memprof("show", path).returncode == 0

    def test_an_exported_target_file_is_a_target(self, memprof):
        (memprof.folder / "mine.pbtxt").write_text(gpus()["l4"].target_config())
        arguments = ("run", "mlp", "--preset", "tiny", "--target", "mine.pbtxt", "--no-save", "--format", "json")
        ended = memprof(*arguments)
        assert (ended.returncode, ended.stderr) == (0, "")
        target = json.loads(ended.stdout)["target"]
        assert (target["name"], target["description"]) == ("mine", gpus()["l4"].description)
        assert (target["memory_bytes"], target["compute_capability"]) == (gpus()["l4"].memory_bytes, "8.9")
        assert memprof.left_behind() == []

    def test_without_a_target_and_the_extra_it_takes_the_cpu_and_says_why(self, memprof):
        environment = {**memprof.run_before_start(WITHOUT_DEVICELESS), "JAX_PLATFORMS": "cpu"}
        ended = memprof("run", "mlp", "--preset", "tiny", "--no-save", "--format", "json", **environment)
        target = json.loads(ended.stdout)["target"]
        assert target["name"] == "cpu"
        assert 'pip install "jax-memprof[deviceless]"' in target["reason"]


class TestShow:
    def test_it_needs_no_jax(self, memprof, capture_path):
        views = [[], *(["--by", by] for by in ("category", "module", "source", "stack", "dtype", "phase", "buffer"))]
        formats = [["--format", name] for name in ("json", "csv", "html", "markdown", "speedscope")]
        options = [*views, *formats]
        commands = [["show", str(capture_path), *each, "-o", f"{n}"] for n, each in enumerate(options)]
        environment = memprof.run_before_start(WITHOUT_JAX)
        ended = memprof(json.dumps(commands), program=(sys.executable, "-c", ONE_AFTER_THE_OTHER), **environment)
        assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
        assert ended.stderr == "".join(f"report written to {n}\n" for n in range(len(options)))
        written = [(memprof.folder / f"{n}").read_text(encoding="utf-8") for n in range(len(options))]
        assert min(len(text.splitlines()) for text in written[: len(views)]) > 5
        assert min(map(len, written[len(views) :])) > 1000
        jsonschema.validate(json.loads(written[len(views)]), json.loads(SCHEMA.read_text(encoding="utf-8")))

    def test_it_writes_a_file_and_leaves_one_that_is_there(self, memprof, capture_path):
        arguments = ("show", capture_path, "--format", "html", "-o", "report.html")
        ended = memprof(*arguments)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "report written to report.html\n")
        written = (memprof.folder / "report.html").read_text(encoding="utf-8")
        assert written.startswith("<!DOCTYPE html>")
        (memprof.folder / "report.html").write_text("mine", encoding="utf-8")
        again = memprof(*arguments)
        assert again.returncode == 2
        assert_one_sentence(again.stderr, "report.html exists already")
        assert (memprof.folder / "report.html").read_text(encoding="utf-8") == "mine"
        assert memprof(*arguments, "--force").returncode == 0

    def test_a_picture_is_bytes(self, memprof, capture_path):
        assert memprof("show", capture_path, "--format", "png", "-o", "report.png").returncode == 0
        assert (memprof.folder / "report.png").read_bytes().startswith(b"\x89PNG")

    def test_a_page_is_not_poured_into_a_terminal(self, memprof, capture_path):
        master, terminal = os.openpty()
        arguments = [*MAIN, "show", str(capture_path), "--format", "html"]
        ended = subprocess.run(arguments, env=memprof.environment, stdout=terminal, stderr=subprocess.PIPE, text=True)
        os.close(terminal)
        os.close(master)
        assert ended.returncode == 2
        assert_one_sentence(ended.stderr, "html cannot be shown in a terminal", "> report.html")

    def test_a_capture_differs_from_itself_by_nothing(self, memprof, capture_path):
        ended = memprof("show", capture_path, "--diff", capture_path, "--format", "json")
        assert (ended.returncode, ended.stderr) == (0, "")
        diff = json.loads(ended.stdout)
        assert (diff["before"]["label"], diff["after"]["label"]) == ("mlp (before)", "mlp (after)")
        assert (diff["footprint_delta_bytes"], diff["live_peak_delta_bytes"]) == (0, 0)
        assert all(each["delta_bytes"] == 0 for each in (*diff["modules"], *diff["buffers"]))
        assert "The footprint is the same" in memprof("show", capture_path, "--diff", capture_path).stdout

    @pytest.mark.parametrize("width", [80, 132])
    def test_no_line_is_wider_than_asked(self, memprof, capture_path, width):
        lines = memprof("show", capture_path, "--width", width).stdout.splitlines()
        assert width - 2 <= max(map(len, lines)) <= width

    def test_a_pipe_gets_no_colour_unless_it_is_asked_for(self, memprof, capture_path):
        assert "\x1b" not in memprof("show", capture_path).stdout
        assert "\x1b[" in memprof("show", capture_path, FORCE_COLOR="1").stdout
        assert "\x1b" not in memprof("show", capture_path, NO_COLOR="1").stdout

    def test_what_the_encoding_lacks_is_written_otherwise(self, memprof, capture_path):
        ended = memprof("show", capture_path, "--full", PYTHONIOENCODING="ascii")
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.isascii()
        assert "#" in ended.stdout  # the bars
        assert "\\x" not in memprof("show", capture_path, PYTHONIOENCODING="ascii").stdout

    @pytest.mark.parametrize("format_name", ["terminal", "json"])
    def test_a_reader_that_goes_away_is_no_error(self, memprof, capture_path, format_name):
        running = memprof.start("show", capture_path, "--format", format_name)
        running.stdout.close()
        assert running.stderr.read() == ""
        running.stderr.close()
        assert running.wait() == 0

    @pytest.mark.parametrize("arguments", [["show", "CAPTURE"], ["list", "targets"], ["run", "--help"]], ids=" ".join)
    def test_a_full_disk_is_one_sentence(self, memprof, capture_path, arguments):
        named = [str(capture_path) if each == "CAPTURE" else each for each in arguments]
        with open("/dev/full", "w") as full:
            ended = subprocess.run(
                [*MAIN, *named], env=memprof.environment, stdout=full, stderr=subprocess.PIPE, text=True
            )
        assert ended.returncode == 2
        assert_one_sentence(ended.stderr, "No space left")

    @pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full"])
    def test_a_sentence_that_nobody_can_read_is_no_defect(self, memprof, closed):
        ended = memprof("show", "nothing.memprof", program=("/bin/sh", "-c", f'"$@" {closed}', "sh", *MAIN))
        assert (ended.returncode, ended.stdout) == (2, "")

    def test_a_folder_that_is_gone_is_one_sentence(self, memprof):
        code = 'mkdir gone && cd gone && rmdir ../gone && "$@"'
        ended = memprof("list", "targets", program=("/bin/sh", "-c", code, "sh", *MAIN))
        assert (ended.returncode, ended.stdout) == (2, "")
        assert_one_sentence(ended.stderr, "the working folder no longer exists")

    def test_columns_that_are_no_number_are_left_out(self, memprof, capture_path):
        for columns in ("\u00b2", "wide", "9" * 30):
            assert memprof("show", capture_path, COLUMNS=columns).returncode == 0

    def test_a_closed_stdout_is_no_error(self, memprof, capture_path):
        ended = memprof("show", capture_path, program=("/bin/sh", "-c", '"$@" >&-', "sh", *MAIN))
        assert (ended.returncode, ended.stderr) == (0, "")


class TestMistakes:
    """Each ends at once with exit code 2 and one sentence that says what is wrong and what would be right."""

    @pytest.mark.parametrize(
        ("arguments", "fragments"),
        [
            (["run", "gpt"], ["no workload 'gpt'", "transformer"]),
            (["run", "mlp", "--preset", "huge"], ["no preset of mlp 'huge'", "tiny"]),
            (["run", "mlp", "-t", "bf15"], ["no technique 'bf15'", "did you mean 'bf16'"]),
            (["run", "mlp", "-t", "bf16++donate"], ["bf16++donate"]),
            (["run", "mlp", "--set", "depth=3"], ["no field 'depth'", "hidden_size"]),
            (["run", "mlp", "--set", "batch_size"], ["'batch_size' is not a setting", "field=value"]),
            (["run", "mlp", "--set", "batch_size=many"], ["batch_size=many", "whole number"]),
            (["run", "mlp", "--set", "batch_size=0"], ["batch_size is 0", "above zero"]),
            (["run", "mlp", "--set", "optimizer=adamx"], ["no optimizer 'adamx'", "adamw"]),
            (["run", "mlp", "--target", "h100-80g"], ["no target 'h100-80g'", "did you mean 'h100-80gb'"]),
            (["run", "mlp", "--target", "nothing.pbtxt"], ["no target 'nothing.pbtxt'", "gpu_target_config.pbtxt"]),
            (["run", "mlp", "--format", "xlm"], ["no format 'xlm'", "json"]),
            (["run", "mlp", "-o", "no/such/folder.memprof"], ["the folder no/such does not exist"]),
            (["run", "mlp", "-o", "."], [". is a folder"]),
            (["show", "nothing.memprof"], ["no file nothing.memprof", "memprof run"]),
            (["show", "."], [". is a folder"]),
        ],
        ids=lambda value: " ".join(value) if value[0] in ("run", "show") else "",
    )
    def test_a_wrong_name_or_value(self, in_process, arguments, fragments):
        ended = in_process(*arguments)
        assert (ended.code, ended.stdout, ended.asked, ended.files) == (2, "", (), {})
        assert_one_sentence(ended.stderr, *fragments)

    @pytest.mark.parametrize(
        ("content", "fragment"),
        [
            (b"nothing of the sort", "is not a GPU target"),
            (b"\xff\xfe\x00", "cannot be read as text"),
            (b"", "is not a GPU target"),
            (
                b"gpu_device_info { device_memory_size: 1 cuda_compute_capability { major: 9 } no_such_field: 2 }",
                "XLA does not accept",
            ),
        ],
        ids=["other text", "binary", "empty", "unknown field"],
    )
    def test_a_target_file_that_is_no_target(self, memprof, content, fragment):
        (memprof.folder / "mine.pbtxt").write_bytes(content)
        ended = memprof("run", "mlp", "--preset", "tiny", "--target", "mine.pbtxt", "--no-save")
        assert (ended.returncode, ended.stdout) == (2, "")
        assert_one_sentence(ended.stderr, fragment)
        assert memprof.left_behind() == []

    @pytest.mark.slow
    def test_a_pool_is_that_of_the_environment_and_an_option_overrides_it(self, memprof):
        share = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}
        command = ("run", "mlp", "--preset", "tiny", "--target", "l4", "--format", "json")
        verdict = json.loads(memprof(*command, **share).stdout)["verdict"]
        assert verdict == {
            "answer": "fits",
            "pool_bytes": gpus()["l4"].memory_bytes // 2,
            "mem_fraction": None,
            "short_bytes": 0,
        }
        (capture,) = memprof.folder.glob("*.memprof")
        assert json.loads(memprof("show", capture, "--format", "json").stdout)["verdict"] == verdict
        chosen = json.loads(memprof("show", capture, "--pool", "25%", "--format", "json", **share).stdout)["verdict"]
        assert chosen["pool_bytes"] == gpus()["l4"].memory_bytes // 4

    def test_a_missing_extra_is_named_with_what_installs_it(self, memprof):
        environment = memprof.run_before_start(WITHOUT_DEVICELESS)
        ended = memprof("run", "mlp", "--preset", "tiny", "--target", "l4", "--no-save", **environment)
        assert ended.returncode == 2
        fragments = ["CUDA plugin", "ptxas", "libdevice", 'pip install "jax-memprof[deviceless]"', "--target cpu"]
        assert_one_sentence(ended.stderr, *fragments)
        assert memprof.left_behind() == []

    def test_a_file_that_exists_is_left_alone(self, memprof):
        path = memprof.folder / "old.memprof"
        path.write_text("old")
        ended = memprof(*SMALL, "-o", path)
        assert ended.returncode == 2
        assert_one_sentence(ended.stderr, "exists already", "--force")
        assert path.read_text() == "old"

    @pytest.mark.parametrize("output", [[], ["-o", "new.memprof"]], ids=["default name", "-o"])
    def test_a_read_only_folder(self, memprof, output):
        memprof.folder.chmod(0o555)
        ended = memprof(*SMALL, *output, program=OBEYING_PERMISSIONS)
        memprof.folder.chmod(0o755)
        if ended.returncode == 99:
            pytest.skip("this root cannot give up its right to ignore permissions")
        assert ended.returncode == 2
        assert_one_sentence(ended.stderr, "cannot be written to")
        assert list(memprof.folder.iterdir()) == memprof.left_behind() == []


class TestTheStepFails:
    def test_the_error_is_shown_without_our_frames(self, memprof):
        ended = memprof(*SMALL, "--set", f"batch_size={10**18}")
        assert (ended.returncode, ended.stdout) == (3, "")
        # JAX refuses when it lowers the step, long after it has left the code of the model.
        assert ended.stderr.splitlines()[0].startswith("NotImplementedError: ")
        assert "sources/jax/compile.py" not in ended.stderr
        assert ended.stderr.splitlines()[-1].startswith("memprof: the step could not be lowered for cpu: ")
        assert "memprof itself failed" not in ended.stderr
        assert list(memprof.folder.iterdir()) == memprof.left_behind() == []

    def test_what_the_users_code_prints_is_not_data(self, memprof):
        environment = memprof.run_before_start(PRINTING_WHEN_IMPORTED)
        ended = memprof(*SMALL, "--no-save", "--format", "json", **environment)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert json.loads(ended.stdout)["workload"] == "mlp"
