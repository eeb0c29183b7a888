"""Public training scripts, as they are published, under `memprof watch`: is the step found, and is its report right?

    python -m benchmarks.watched.scripts FOLDER -o RESULT.json [--only TEXT]

FOLDER holds checkouts of the projects (`FOLDER/flax`, `FOLDER/jax`, ...). Nothing in them is changed; the cells of a
notebook are run as one script. Data that a script would download come from stand-ins (see `stand_ins.py`). What a
project imports has to be installed: a script that cannot run is told as a problem, and `--only TEXT` chooses. Each
script runs for a limited time; then what `watch` says of its step is held against a capture of the same call by
`memprof.profile` (see `spec_of_script.py`): every argument with its path and role, every category to the byte.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

from benchmarks.watched.stand_ins import STAND_INS, write_stand_ins, write_texts
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.sources.capture_file import read_capture
from memprof.sources.jax.xla.toolchain import installed_version

_PATIENCE_SECONDS = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicScript:
    """A script.

    Attributes:
        path: in the folder of checkouts.
        step: the name of the function that trains.
        arguments: as few steps as it lets one ask for; `{folder}` is its own, `{work}` where it runs.
        sources: what its project has on Python's path, in the folder of checkouts.
        has_own_data: it takes real libraries, and what `write_texts` writes or it makes by itself.
    """

    path: str
    step: str
    arguments: tuple[str, ...] = ()
    sources: str = ""
    has_own_data: bool = False


SCRIPTS = (
    PublicScript(path="jax/examples/mnist_classifier_fromscratch.py", step="update"),
    PublicScript(path="jax/examples/mnist_vae.py", step="run_epoch"),
    PublicScript(
        path="flax/examples/mnist/main.py",
        step="train_step",
        arguments=("--workdir=work", "--config={folder}/configs/default.py", "--config.num_epochs=1"),
    ),
    PublicScript(path="flax/examples/nnx_toy_examples/02_lifted_transforms.py", step="train_step"),
    PublicScript(path="dm-haiku/examples/mnist.py", step="update"),
    PublicScript(path="optax/examples/mlp_mnist.ipynb", step="train_step"),
    PublicScript(path="equinox/docs/examples/train_rnn.ipynb", step="make_step"),
    PublicScript(path="e3nn-jax/examples/tetris_point.py", step="update_fn"),
    PublicScript(path="diffrax/docs/examples/neural_ode.ipynb", step="make_step"),
    PublicScript(
        path="transformers/examples/flax/language-modeling/run_clm_flax.py",
        step="train_step",
        arguments=tuple(
            "--output_dir out --do_train --model_type gpt2 --config_name model --tokenizer_name model"
            " --train_file texts.txt --validation_file texts.txt --block_size 32 --num_train_epochs 1"
            " --per_device_train_batch_size 8 --per_device_eval_batch_size 8".split()
        ),
        has_own_data=True,
    ),
    PublicScript(
        path="maxtext/src/maxtext/trainers/pre_train/train.py",
        step="train_step",
        arguments=tuple(
            "{folder}/../../configs/base.yml run_name=tiny base_output_directory={work}/out hardware=cpu steps=3"
            " dataset_type=synthetic base_emb_dim=64 base_num_query_heads=2 base_num_kv_heads=2 base_mlp_dim=128"
            " base_num_decoder_layers=2 head_dim=32 vocab_size=256 max_target_length=32 per_device_batch_size=2"
            " enable_checkpointing=false attention=dot_product skip_jax_distributed_system=true".split()
        ),
        sources="maxtext/src",
        has_own_data=True,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came of a script.

    Attributes:
        kind: what `watch` takes its step for; empty: the step was not found.
        num_arguments: that have the same path, type and role as in the spec, and all.
        footprint_bytes: by `watch`, and as a spec.
        differences: categories whose bytes differ.
        problem: why there is nothing to compare.
    """

    script: str
    step: str
    kind: str = ""
    num_same_arguments: int = 0
    num_arguments: int = 0
    footprint_bytes: tuple[int, int] = (0, 0)
    differences: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    problem: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the report is that of the spec."""
        same = self.num_same_arguments == self.num_arguments > 0 and self.footprint_bytes[0] == self.footprint_bytes[1]
        return self.kind == "train step" and same and not self.differences


def main() -> None:
    """Run them, and write what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=int, default=60, help="for which a script runs")
    given = parser.parse_args()
    found = []
    for script in SCRIPTS:
        if given.only in script.path:
            with tempfile.TemporaryDirectory() as work:
                found.append(_watched(script, given.folder.resolve(), Path(work), given.seconds))
            print(found[-1], flush=True)
    num_right = sum(each.is_right for each in found)
    print(f"{num_right} of {len(found)} scripts: the step found, and its report that of the spec")
    if given.output:
        result = {"date": str(date.today()), "jax": installed_version("jax"), "found": [asdict(each) for each in found]}
        given.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _watched(script: PublicScript, folder: Path, work: Path, seconds: int) -> Found:
    (write_texts if script.has_own_data else write_stand_ins)(work)
    paths = [work / STAND_INS, folder / script.sources] if script.sources else [work / STAND_INS]
    path = _as_script(folder / script.path, work)
    arguments = [each.format(folder=path.parent, work=work) for each in script.arguments]
    stop = ["--stop-after", f"{seconds}s", "--keep", "20", "-o", "captures"]
    _, said = _run(["-m", "memprof", "watch", *stop, str(path), *arguments], work, paths)
    _, spec_said = _run(
        ["-m", "benchmarks.watched.spec_of_script", script.step, str(work / "spec.memprof"), str(path), *arguments],
        work,
        paths,
    )
    nothing = Found(script=script.path, step=script.step)
    captures = sorted((work / "captures").glob(f"{script.step}-*.memprof"))
    if not captures or not (work / "spec.memprof").exists():
        which = said if not captures else spec_said
        return Found(script=script.path, step=script.step, problem=which[-600:] or nothing.problem)
    line = next((line for line in said.splitlines() if line.startswith(script.step)), "")
    kind = next((each for each in ("train step", "gradients", "update", "eval step", "init") if each in line), "")
    spec = read_capture(work / "spec.memprof")  # of the first call; the script may make others, of other shapes
    of_step = max(map(read_capture, captures), key=lambda each: len({*each.arguments} & {*spec.arguments}))
    return _compared(script, kind, of_step, spec)


def _as_script(path: Path, work: Path) -> Path:
    """A notebook's code as one file."""
    if path.suffix != ".ipynb":
        return path
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    script = work / f"{path.stem}.py"
    lines = [line for line in "\n".join(code).splitlines() if not line.startswith(("!", "%"))]
    script.write_text("\n".join(lines), encoding="utf-8")
    return script


def _run(command: list[str], work: Path, paths: Sequence[Path]) -> tuple[int, str]:
    python_path = os.pathsep.join(map(str, [*paths, Path(__file__).parents[2]]))
    environment = {**os.environ, "PYTHONPATH": python_path, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PATIENCE_SECONDS,
    )
    return ended.returncode, ended.stdout


def _compared(script: PublicScript, kind: str, watched: Capture, spec: Capture) -> Found:
    given, wanted = analyze(watched), analyze(spec)
    names = {*given.categories, *wanted.categories}
    sizes = {str(each): (given.categories.get(each, 0), wanted.categories.get(each, 0)) for each in names}
    return Found(
        script=script.path,
        step=script.step,
        kind=kind,
        num_same_arguments=len(set(watched.arguments) & set(spec.arguments)),
        num_arguments=max(len(watched.arguments), len(spec.arguments)),
        footprint_bytes=(given.footprint_bytes, wanted.footprint_bytes),
        differences={name: size for name, size in sorted(sizes.items()) if size[0] != size[1]},
    )


if __name__ == "__main__":
    main()
