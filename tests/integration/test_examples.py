"""The examples, compiled for a GPU and for the CPU: frameworks and kinds of training that memprof does not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import ModuleNode, Report
from memprof.api import profile_spec
from memprof.workloads.user.build import UserStep
from memprof.workloads.user.reference import parse

EXAMPLES = Path(__file__).parents[2] / "examples"
TARGETS = (pytest.param("h100-80gb", marks=pytest.mark.with_each_jax), "cpu")

# Modules of the user's own, as they were written, that the module table must name, and categories that must be there.
EXPECTED = {
    "equinox_mlp": ({"embed", "body/layers/0", "head"}, {"params", "optimizer_state", "batch", "cotangents"}),
    "flax_linen": ({"hidden_0", "hidden_2", "head"}, {"params", "optimizer_state", "activations", "cotangents"}),
    "flax_nnx": ({"embed", "first/linear", "second/norm", "head"}, {"params", "optimizer_state", "outputs"}),
    "haiku_cnn": ({"net/conv_0", "net/norm_1", "net/head"}, {"params", "other_state", "activations"}),
    "inference": ({"hidden_0", "head"}, {"params", "batch", "outputs"}),
    "lora": ({"base/up", "adapters/up", "adapters/down"}, {"params", "optimizer_state", "activations"}),
    "plain_jax": ({"layer_0", "layer_1", "layer_2"}, {"params", "optimizer_state", "cotangents"}),
    "recurrent": ({"embed", "GRUCell_0/hn", "head"}, {"params", "optimizer_state", "cotangents"}),
    "rollout": ({"first", "second", "last"}, {"params", "optimizer_state", "batch", "activations"}),
    "train_spec": ({"hidden", "head"}, {"params", "optimizer_state", "activations"}),
    "two_optimizers": ({"embed", "hidden", "head"}, {"params", "optimizer_state", "gradients"}),
}  # fmt: skip


class Reports(dict[tuple[str, str], Report]):
    """The examples on targets, each compiled when it is first asked for.

    The analysis refuses a program whose categories do not add up.
    """

    def __missing__(self, key: tuple[str, str]) -> Report:
        name, target = key
        spec = UserStep(reference=parse(f"{EXAMPLES / name}.py:step_spec")).build()
        self[key] = profile_spec(spec, target=target).report
        return self[key]


@pytest.fixture(scope="module")
def reports() -> Reports:
    return Reports()


def test_every_example_is_here() -> None:
    # test_serve_plan.py, test_meshes.py, test_running_on_meshes.py and test_sharded_examples.py
    others = {"engine", "running_sharded"} | {
        f"sharded{way}" for way in ("", "_by_hand", "_equinox", "_explicit", "_flax_linen", "_flax_nnx")
    }
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(EXPECTED) | others


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", EXPECTED)
def test_every_byte_is_explained(reports: Reports, name: str, target: str) -> None:
    report = reports[name, target]
    assert sum(report.categories.values()) == report.footprint_bytes
    assert report.categories[Category.UNATTRIBUTED] < 0.01 * report.footprint_bytes
    assert report.doubts == ()
    if target != "cpu":
        assert report.live_peak_bytes == report.compiler.peak_memory_bytes


@pytest.mark.parametrize("name", EXPECTED)
def test_the_users_own_modules_are_named(reports: Reports, name: str) -> None:
    modules, categories = EXPECTED[name]
    report = reports[name, "h100-80gb"]
    assert modules <= {node.path for node in _nodes(report.modules)}
    assert categories <= {str(category) for category, size in report.categories.items() if size}


@pytest.mark.parametrize("name", EXPECTED)
def test_source_lines_are_the_users(reports: Reports, name: str) -> None:
    report = reports[name, "h100-80gb"]
    sources = {buffer.source for buffer in report.buffers if buffer.source}
    assert sources
    files = {source.rpartition(":")[0] for source in sources}
    others = files - {str(EXAMPLES / f"{name}.py")}
    # Around a loss the step is memprof's, wherever that is installed: the update comes from there.
    assert all(name == "train_spec" and file.endswith("memprof/workloads/train_step.py") for file in others)


def test_a_step_without_gradients_has_nothing_of_a_backward_pass(reports: Reports) -> None:
    categories = reports["inference", "h100-80gb"].categories
    backward = (Category.GRADIENTS, Category.COTANGENTS, Category.ACTIVATIONS, Category.OPTIMIZER_STATE)
    assert sum(categories[category] for category in backward) == 0


def test_gradients_of_a_frozen_part_are_not_made(reports: Reports) -> None:
    report = reports["lora", "h100-80gb"]
    base = next(node for node in _nodes(report.modules) if node.path == "base")
    assert base.categories.get(Category.OPTIMIZER_STATE, 0) == base.categories.get(Category.GRADIENTS, 0) == 0
    # up: 256*1024 + 1024, down: 1024*256 + 256; adapters: 256*8 + 8*1024 and 1024*8 + 8*256
    assert report.num_params == 525_568 + 20_480


def _nodes(node: ModuleNode) -> Iterator[ModuleNode]:
    yield node
    for child in node.children:
        yield from _nodes(child)
