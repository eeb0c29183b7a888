"""An invented source and an invented category: what memprof makes of them without a line about them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from invented_source import capture_of

import memprof
from memprof.analysis.comparison import compare
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Category
from memprof.reports.format import formats
from memprof.reports.options import RenderOptions
from memprof.sources.capture_file import read_capture, write_capture
from memprof.sources.jax.targets.resolve import resolve

pytestmark = pytest.mark.with_one_jax

# Two parameters of 4,096 bytes; two values of the forward pass, of which the second outlives the first; a gradient.
# At the peak, operation 3, live: 4096 + 4096 + 2048 + 1024 = 11,264 bytes.
TEXT = """\
# name size category phase born freed
layers/0/weight 4096 params argument 0 -
layers/1/weight 4096 params argument 0 -
layers/0/hidden 2048 activations forward 1 4
layers/1/hidden 1024 activations forward 3 5
layers/1/gradient 512 gradients backward 5 6
"""


def test_a_text_file_of_sizes_and_lifetimes_becomes_a_full_report(tmp_path: Path) -> None:
    (tmp_path / "step.txt").write_text(TEXT)
    path = write_capture(capture_of(tmp_path / "step.txt", resolve("l4")), tmp_path / "step.memprof")
    report = analyze(read_capture(path))
    assert report.live_peak_bytes == 11264
    assert {name: size for name, size in report.categories.items() if size and name != "fragmentation"} == {
        Category.PARAMS: 8192,
        Category.ACTIVATIONS: 3072,
    }
    assert sum(report.categories.values()) == report.footprint_bytes
    assert [each.name for each in report.buffers if not each.is_temp] == ["layers/0/weight", "layers/1/weight"]
    assert report.timeline.peak_position == 3
    profile = memprof.load(path)
    assert profile.by("module")["layers/1"] == 4096 + 1024
    assert json.loads(str(profile.render("json")))["live_peak_bytes"] == 11264
    page = str(profile.render("html"))
    assert "layers/1/hidden" in page
    assert "<svg" in page or "<canvas" in page


def test_two_of_them_are_compared_like_any_others(tmp_path: Path) -> None:
    reports = []
    for name, text in (("before", TEXT), ("after", TEXT.replace("hidden 2048", "hidden 1048576"))):
        (tmp_path / f"{name}.txt").write_text(text)
        reports.append(analyze(capture_of(tmp_path / f"{name}.txt", resolve("l4"))))
    comparison = compare(reports, baseline="before", verdicts={}, failures=())
    assert comparison.effects[-1].categories_delta[Category.ACTIVATIONS] == 1048576 - 2048
    for each in formats():
        assert each.render_comparison(comparison, RenderOptions())


# What each format shows of a capture whose buffers are of a category that the package knows by one row alone.
SHOW = """
import json, sys
from collections.abc import Mapping
from pathlib import Path
from invented_source import capture_of
from memprof.analysis.comparison import compare
from memprof.analysis.pipeline import analyze
from memprof.sources.jax.targets.resolve import resolve
from memprof.reports.format import formats
from memprof.reports.options import RenderOptions

reports = [analyze(capture_of(Path(name), resolve("l4"))) for name in sys.argv[1:]]
comparison = compare(reports, baseline="one", verdicts={}, failures=())
found = {}
for each in formats():
    shown = [each.render_report(reports[0], RenderOptions(width=200))]
    shown.append(each.render_comparison(comparison, RenderOptions(width=200)))
    found[each.name] = [text if isinstance(text, str) else len(text) for text in shown]
print(json.dumps(found))
"""


ROW = '    REPLAYED = ("replayed", "Y", "#88aaee", "acts", False, True,\n        "values that somebody invented")\n'

# What an argument of a role that the package knows by one row alone gives to the values that are made from it.
OF_ROLE = """
import json
from hlo import Step
from hlo_nodes import FORWARD, PLAIN, f32
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Role

step = Step()
w = step.argument("model['a']['w']", Role.PARAMS, f32(4))
held = step.argument("curriculum", Role("replayed"), f32(8))
spread = step.op("spread", "multiply", f32(64), [held, held], PLAIN)
used = step.op("used", "dot", f32(4), [w, spread], FORWARD)
step.result(used)
report = analyze(step.capture())
print(json.dumps({value.name: [value.category, value.size_bytes] for value in report.buffers}))
"""


def test_an_invented_role_is_one_row_beside_that_of_its_category(tmp_path: Path) -> None:
    """Its argument has its category, and what is made from it is no copy of parameters."""
    _with_rows(tmp_path, {"    RECOMPUTED = ": ROW, '    OTHER_STATE = "': '    REPLAYED = "replayed"\n'})
    found = json.loads(_run(tmp_path, OF_ROLE))
    assert found["curriculum"] == ["replayed", 32]
    assert found["spread"] == ["forward_temps", 256]


def _with_rows(folder: Path, rows: Mapping[str, str]) -> None:
    """Copy the package to a folder, with more rows in the tables of categories and roles: each by the row after it."""
    package = Path(memprof.__file__).parent
    shutil.copytree(package, folder / "memprof", ignore=shutil.ignore_patterns("__pycache__"))
    table = folder / "memprof" / "analysis" / "records" / "categories.py"
    for following, row in rows.items():
        text, count = re.subn(f"(?m)^(?={re.escape(following)})", row, table.read_text())
        assert count == 1
        table.write_text(text)


def _run(folder: Path, program: str, *arguments: str) -> str:
    """Run a program with the copy of the package, and return what it prints."""
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(Path(__file__).parents[1])))},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_an_invented_category_is_one_row_of_the_table(tmp_path: Path) -> None:
    """In a copy of the package: every format that names categories names the new one."""
    _with_rows(tmp_path, {"    RECOMPUTED = ": ROW})
    for name, size in (("one", 1 << 20), ("two", 2 << 20)):
        lines = TEXT.replace("hidden 2048 activations", f"hidden {size} replayed")
        (tmp_path / f"{name}.txt").write_text(lines)
    shown = json.loads(_run(tmp_path, SHOW, "one.txt", "two.txt"))
    assert set(shown) == {each.name for each in formats()}
    for name, (report, comparison) in shown.items():
        for rendered in (report, comparison):
            if not isinstance(rendered, str):
                assert rendered > 0
            elif "activations" in rendered:
                assert "replayed" in rendered, name
    assert "values that somebody invented" in shown["html"][0]
    report, comparison = (json.loads(each) for each in shown["json"])
    assert report["categories"]["replayed"] == 1 << 20
    assert comparison["effects"][-1]["categories_delta"]["replayed"] == 1 << 20
