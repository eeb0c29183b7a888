"""What the ending of a file says of what is written to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from memprof.errors import MemprofError
from memprof.profiler_cli.compare import with_folders_opened
from memprof.profiler_cli.endings import capture_or_report, format_for
from memprof.reports.format import formats

pytestmark = pytest.mark.with_one_jax


@pytest.mark.parametrize("each", formats(), ids=lambda each: str(each.name))
def test_each_format_has_an_ending_of_its_own(each: object) -> None:
    assert format_for(None, Path(f"r{each.suffix}")) == each.name  # type: ignore[attr-defined]
    assert format_for(None, Path(f"R{each.suffix.upper()}")) == each.name  # type: ignore[attr-defined]


def test_without_a_file_or_an_ending_it_is_the_terminal() -> None:
    assert (format_for(None, None), format_for(None, Path("report"))) == ("terminal", "terminal")
    assert (format_for("html", None), format_for("html", Path("report.page"))) == ("html", "html")


@pytest.mark.parametrize(
    ("name", "path", "fragment"),
    [
        (None, "r.docx", "ends in .docx, which is not a format"),
        (None, "r.memprof", "is the name of a capture"),
        ("html", "r.memprof", "is the name of a capture"),
        ("json", "r.html", "names a report as html, but --format says json"),
    ],
)
def test_what_an_ending_cannot_mean_is_refused(name: str | None, path: str, fragment: str) -> None:
    with pytest.raises(MemprofError, match=fragment):
        format_for(name, Path(path))


def test_a_capture_is_never_written_under_the_name_of_a_report() -> None:
    capture, report = Path("r.memprof"), Path("r.html")
    assert capture_or_report(None, otherwise="") == (None, None)
    assert capture_or_report(capture, otherwise="") == (capture, None)
    assert capture_or_report(report, otherwise="") == (None, report)
    for name in ("r.docx", "r"):
        with pytest.raises(MemprofError, match=r"neither that it is a capture nor a report: end it in \.memprof"):
            capture_or_report(Path(name), otherwise="end it in .memprof")


def test_a_folder_stands_for_its_captures_unless_a_workload_is_called_like_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("rows/b.memprof", "rows/a.memprof", "rows/notes.txt", "mlp/a.memprof", "empty/notes.txt"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    assert with_folders_opened(["rows", "c.memprof"]) == ["rows/a.memprof", "rows/b.memprof", "c.memprof"]
    assert with_folders_opened(["mlp"]) == ["mlp"]
    with pytest.raises(MemprofError, match=r"the folder empty holds no captures \(\*.memprof\)"):
        with_folders_opened(["empty"])
