"""`memprof trace --view`, in a browser: TensorBoard on loopback with the trace and the memory of the step."""

from __future__ import annotations

import importlib.util
import re
import shutil
import signal
import subprocess

import pytest
from integration.command import wait_until

pytestmark = [
    pytest.mark.with_one_jax,
    pytest.mark.skipif(
        importlib.util.find_spec("tensorboard_plugin_profile") is None,
        reason="the extra `tensorboard` is not installed",
    ),
    pytest.mark.skipif(shutil.which("ss") is None, reason="there is no `ss` to list open ports with"),
]


def listening(process_ids: set[int]) -> set[str]:
    """The addresses that these processes listen on."""
    lines = subprocess.run(["ss", "-H", "-ltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
    of_ours = [line for line in lines if process_ids & {int(number) for number in re.findall(r"pid=(\d+)", line)}]
    return {line.split()[3].rpartition(":")[0] for line in of_ours}


@pytest.fixture
def viewed(memprof, start):
    """A log directory with a traced session and one of a compile alone, shown until the test is over."""
    compiled = memprof("trace", "transformer", "--preset", "tiny", "--target", "h100-80gb", "--logdir", "logs")
    assert compiled.returncode == 0, compiled.stderr
    running = start(
        *("trace", "mlp", "--preset", "tiny", "--target", "cpu", "--steps", "10", "--logdir", "logs", "--view"),
    )
    return running, viewer_address(running)


def viewer_address(running):
    """What the command says that the viewer listens on."""
    printed = ""
    while True:
        line = running.stderr.readline()
        assert line, printed
        printed += line
        if address := re.search(r"http://127\.0\.0\.1:\d+/", line):
            return address.group()


def frame_with(page, fragment: str):
    """The frame whose address contains a fragment, as soon as it is there."""
    for _ in range(300):
        page.wait_for_timeout(100)
        found = next((frame for frame in page.frames if fragment in frame.url), None)
        if found is not None:
            return found
    raise TimeoutError(fragment)


def wait_for_found(frame, text: str, number: int) -> None:
    """Have the trace viewer look for events of that name, and wait until it has found so many."""
    frame.get_by_placeholder("Find Events...").fill(text)
    frame.get_by_text(re.compile(rf"^\s*\d+ of {number}\s*$")).wait_for(timeout=30_000)


def peak_in_memory_viewer(page, address: str, run: str) -> str:
    """The line of the memory viewer that says the peak, as soon as its number is there."""
    page.goto(f"{address}?run={run}&tag=memory_viewer#profile")
    frame = frame_with(page, "/memory_viewer")
    header = frame.get_by_text(re.compile(r"Peak memory allocation: \d")).first
    header.wait_for(timeout=30_000)
    return header.inner_text()


def test_the_viewer_shows_steps_and_peaks_on_loopback_alone(memprof, viewed, browser):
    running, address = viewed
    ours = {running.pid, *(pid for pid, _ in memprof.processes())}
    assert listening(ours) == {"127.0.0.1"}
    page = browser.new_page(viewport={"width": 1500, "height": 900})
    page.goto(f"{address}?run=mlp-tiny-cpu&tag=trace_viewer@#profile")
    frame = frame_with(page, "trace_viewer_index")
    frame.get_by_text("python").first.wait_for(timeout=30_000)
    # Ten steps after two to warm up: number 2 to number 11. What it has found before is never the answer.
    for number, found in ((2, 1), (12, 0), (11, 1)):
        wait_for_found(frame, f"step {number}", found)
    for run in ("mlp-tiny-cpu", "transformer-tiny-h100-80gb"):
        peak_mib = live_peak_bytes(memprof, run) / 2**20
        shown = peak_in_memory_viewer(page, address, run)
        assert shown.startswith(f"Peak memory allocation: {peak_mib:.2f} MiB")
    page.close()
    assert listening(ours) == {"127.0.0.1"}
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=60)
    assert (running.returncode, stderr) == (130, "memprof: interrupted.\n")
    assert "Measured" in stdout
    wait_until(lambda: not memprof.processes(), seconds=60)


@pytest.mark.slow
def test_no_viewer_outlives_a_killed_command(memprof, start):
    running = start("trace", "mlp", "--preset", "tiny", "--target", "cpu", "--logdir", "logs", "--view")
    viewer_address(running)
    assert any("memprof.profiler_cli.viewer" in arguments for _, arguments in memprof.processes())
    running.kill()
    wait_until(lambda: not memprof.processes(), seconds=60)
    assert memprof.processes() == []


def live_peak_bytes(memprof, run: str) -> int:
    """Our own peak of a session's program."""
    from memprof.analysis.hlo.buffer_table import decode_buffer_table
    from memprof.analysis.hlo.hlo_proto import parse_proto
    from memprof.analysis.hlo.liveness import replay
    from memprof.analysis.hlo.program_decoding import decode_program

    (path,) = (memprof.folder / "logs" / "plugins" / "profile" / run).glob("*.hlo_proto.pb")
    proto = parse_proto(path.read_bytes())
    table = decode_buffer_table(proto, decode_program(proto))
    device = {allocation.index for allocation in table.device_allocations}
    traces = [trace for trace in table.traces if trace.allocation in device]
    traced = {trace.allocation for trace in traces}
    lasting = sum(each.size_bytes for each in table.device_allocations if each.index not in traced)
    return lasting + sum(replay(trace, table).peak_bytes for trace in traces)


def test_without_tensorboard_it_says_what_to_install(memprof):
    without = "import importlib.util\nfind = importlib.util.find_spec\n"
    without += "importlib.util.find_spec = lambda name, *rest: None if 'tensorboard' in name else find(name, *rest)\n"
    environment = memprof.run_before_start(without)
    ended = memprof("trace", "mlp", "--preset", "tiny", "--target", "cpu", "--steps", "1", "--view", **environment)
    assert ended.returncode == 2
    assert 'pip install "jax-memprof[tensorboard]"' in ended.stderr
    assert list(memprof.folder.iterdir()) == []  # it says so before the work
