"""The commands and the Python blocks that README.md and docs/ print, in their order."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"\s+# .*$")
# Commands that no test runs as printed, by a part of them, and why.
NOT_RUN = {
    "pip install": "takes a package index; .ci/run installs the project as the README says",
    "-m pytest": "the tests themselves; .ci/run takes this command from the README",
    "dask ": "takes several machines; integration/test_cluster.py has a cluster on one",
    "--cluster": "takes a cluster; integration/test_cluster.py has one",
    "srun": "takes Slurm",
    "export JAX_COORDINATOR_ADDRESS": "two processes at a time: integration/test_running_on_meshes.py",
    "PROCESS_ID=": "two processes at a time: integration/test_running_on_meshes.py",
    "old-env/": "takes two environments",
    "new-env/": "takes two environments",
    "benchmarks.": "takes a GPU or many minutes",
    "examples/running_sharded.py": "takes several devices: integration/test_running_on_meshes.py",
    "--framework torch": "takes the extra torch: integration/test_torch_steps.py",
    "--engine tensorrt": "takes the extra tensorrt: integration/test_engines.py",
    "memprof advise transformer": "takes minutes; integration/test_compiled_advice.py has smaller steps",
    "memprof fit loop.py": "takes minutes; integration/test_user_code.py has a smaller budget",
    "memprof export ": "takes the extra onnx: unit/sources/test_exporting.py",
    "snapshot.pickle": "takes a snapshot from a card: unit/sources/test_memory_snapshot.py",
    "--target v5": "takes the extra tpu: integration/test_tpu.py",
    "--target v6e": "takes the extra tpu: integration/test_tpu.py",
}
_SETTINGS = re.compile(r'^(?:[A-Z_]+=(?:"[^"]*"|\S*) )+')  # of the environment, before a command
_PROGRAMS = ("memprof", "pip", "python", "python3", "dask", "export", "tensorboard")


@dataclass(frozen=True, slots=True)
class Printed:
    """A block of code, or a command of one.

    Attributes:
        page: relative to the root of the project.
        line: where it begins, from 1.
    """

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def name_of(page: Path) -> str:
    """The page's path in the project."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, *languages: str) -> list[Printed]:
    """The blocks of code in these languages."""
    text = page.read_text(encoding="utf-8")
    return [
        Printed(name_of(page), text.count("\n", 0, found.start(2)) + 1, found[2])
        for found in _BLOCK.finditer(text)
        if found[1] in languages
    ]


def commands(page: Path) -> list[Printed]:
    """The commands of its shell blocks, each in one line and without its comment."""
    found: list[Printed] = []
    for block in blocks(page, "sh", ""):
        for number, line in enumerate(re.sub(r" *\\\n +", "  ", block.text).splitlines()):
            command = " ".join(_COMMENT.sub("", line).split())
            if _is_command(command):
                found.append(Printed(block.page, block.line + number, command))
    return found


def is_run(command: Printed) -> bool:
    """Whether a test can run it."""
    return not any(part in command.text for part in NOT_RUN)


def write_scripts(folder: Path) -> None:
    """Write the scripts that the docs call `train.py` and `loop.py`, and the examples."""
    script = ""
    for block in blocks(ROOT / "docs" / "your-own-step.md", "python"):
        if block.text.startswith("# train.py\n"):
            script = block.text
        elif block.text.startswith("# also in train.py\n"):
            script = script.replace("\ndef main():", f"\n{block.text}\n\ndef main():")
        elif block.text.startswith("# loop.py\n"):
            (folder / "loop.py").write_text(block.text, encoding="utf-8")
    (folder / "train.py").write_text(script, encoding="utf-8")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "examples" / "engine.py", folder)


def _is_command(line: str) -> bool:
    program = _SETTINGS.sub("", line).partition(" ")[0]
    return program.rpartition("/")[2] in _PROGRAMS
