"""How long an HTML page takes to make and to open, how much memory, and how large it is.

    python -m benchmarks.render_html CAPTURE.memprof [-o RESULT.json]

Makes the page of a capture (`memprof run transformer --preset gpt2 --target h100-80gb`), and once more with its buffers
repeated until there are 20,000. Each is rendered several times in a process of its own; the fastest counts. Where there
are Chromium and playwright, the page is also opened, in a window of 1280 x 800: `seconds_to_text` is when something is
there to read, `seconds_to_charts` when all charts are drawn and painted, those below the first screen too, and the page
answers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import platform
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.report import Report
from memprof.reports.formats.html import FORMAT
from memprof.reports.options import RenderOptions
from memprof.sources.capture_file import read_capture

NUM_REPEATS = 5
MANY = 20_000
WIDTH, HEIGHT = 1280, 800
_NOTE_WHEN_SEEN = """
window.seconds = {};
new PerformanceObserver((list) => { window.seconds.text = list.getEntries()[0].startTime / 1000; })
  .observe({ type: "paint", buffered: true });
new MutationObserver((_, observer) => {
  if (!document.documentElement.hasAttribute("data-ready")) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.seconds.charts = performance.now() / 1000; }));
}).observe(document, { attributes: true, attributeFilter: ["data-ready"], subtree: true });
"""  # a task after a frame runs when that frame has been laid out and painted


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One page. What could not be measured here is None."""

    label: str
    num_temp_buffers: int
    size_bytes: int
    render_seconds: float
    peak_memory_bytes: int
    seconds_to_text: float | None
    seconds_to_charts: float | None


def with_many_buffers(report: Report) -> Report:
    """A page as large as that of a program with many buffers. The sums of this report do not hold."""
    times = -(-MANY // len(report.temp_buffers))
    pairs = [(each, copy) for copy in range(times) for each in report.temp_buffers][:MANY]
    copies = tuple(replace(each, op=f"{each.op}_{copy}", at_peak=True) for each, copy in pairs)
    reasons = itertools.cycle(each for each in report.reasons if each.buffer.is_temp)
    return replace(
        report,
        label=f"{report.label}, {MANY:,} buffers",
        buffers=copies,
        reasons=tuple(replace(next(reasons), buffer=each) for each in copies[: len(report.reasons)]),
        temp_buffers=copies,
        timeline=replace(report.timeline, temp_changes=(report.timeline.temp_changes * times)[:MANY]),
    )


def measure(path: Path, many: bool) -> Measurement:
    report = analyze(read_capture(path))
    if many:
        report = with_many_buffers(report)
    seconds = []
    for _ in range(NUM_REPEATS):
        started = time.perf_counter()
        html = FORMAT.render_report(report, RenderOptions(advice=() if many else None))
        seconds.append(time.perf_counter() - started)
    assert isinstance(html, str)
    peak_memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    to_text, to_charts = open_page(html)
    return Measurement(
        label=report.label,
        num_temp_buffers=len(report.temp_buffers),
        size_bytes=len(html),
        render_seconds=min(seconds),
        peak_memory_bytes=peak_memory_bytes,
        seconds_to_text=to_text,
        seconds_to_charts=to_charts,
    )


def open_page(html: str) -> tuple[float | None, float | None]:
    """Seconds until the document can be read and until all is drawn, from the start of loading it."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None, None
    if chromium is None:
        return None, None
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path = Path(folder, "page.html")
        path.write_text(html, encoding="utf-8")
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        timings = []
        for _ in range(NUM_REPEATS):
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.add_init_script(_NOTE_WHEN_SEEN)
            page.goto(path.as_uri())
            while len(seconds := page.evaluate("window.seconds")) < 2:
                page.wait_for_timeout(20)
            timings.append((max(seconds["charts"], seconds["text"]), seconds["text"]))
            page.close()
        browser.close()
    to_charts, to_text = min(timings)
    return to_text, to_charts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("capture", type=Path)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the result as JSON")
    arguments = parser.parse_args()

    measurements = []
    for many in (False, True):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            measurements.append(pool.apply(measure, (arguments.capture, many)))
        print(json.dumps(asdict(measurements[-1]), indent=1), flush=True)
    if arguments.output is not None:
        result = {
            "command": "python -m benchmarks.render_html",
            "machine": {"architecture": platform.machine(), "system": sys.platform},
            "python": platform.python_version(),
            "num_repeats": NUM_REPEATS,
            "measurements": [asdict(each) for each in measurements],
        }
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
