"""Logs of runs that were out of memory, as they were posted: what was asked for, what was free, which buffer it is."""

from __future__ import annotations

from typing import Any

import pytest
from hlo import Step
from hlo_nodes import BACKWARD, FORWARD, PLAIN, f32
from oom_logs import POSTED

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.reports.document import Cell, Table
from memprof.reports.formats.terminal import FORMAT
from memprof.reports.json.runs import explanation_json
from memprof.reports.options import RenderOptions
from memprof.reports.views.explain import explanation_document, sentences
from memprof.studies.explain.explanation import AskedFor, Explanation, explain
from memprof.studies.explain.log import read_log
from memprof.studies.explain.records import ListedBuffer, Moment, OutOfMemory, Pool

pytestmark = pytest.mark.with_one_jax

MIB, GIB = 1024**2, 1024**3
# By the beginning of its title: when, device, asked for, free, there is.
READ: dict[str, tuple[Moment, str, int, int | None, int | None]] = {
    "gpu, program listed": (Moment.RUNNING, "GPU", 6291456, None, None),
    "gpu, program summed up": (Moment.RUNNING, "GPU", 4770354232, None, None),
    "gpu, several devices": (Moment.RUNNING, "GPU", 28804500256, None, None),
    "gpu, far more": (Moment.RUNNING, "GPU", 1374521760000, None, None),
    "gpu, after tries": (Moment.RUNNING, "GPU", 3199993600, None, None),
    "gpu, an array": (Moment.RUNNING, "GPU", 3206250496, None, None),
    "gpu, before": (Moment.RUNNING, "GPU", 33554432, None, None),
    "cpu": (Moment.RUNNING, "CPU", 124867611608, None, None),
    "tpu, compiling, buffers": (Moment.COMPILING, "TPU", round(63.80 * GIB), None, round(30.75 * GIB)),
    "tpu, compiling, an early": (Moment.COMPILING, "TPU", round(9.08 * GIB), None, round(7.48 * GIB)),
    "tpu, compiling, with": (Moment.COMPILING, "TPU", round(215.17 * GIB), None, round(31.25 * GIB)),
    "tpu, given up": (Moment.COMPILING, "TPU", (347 * 1024**6 + 50) // 100, None, round(14.49 * GIB)),
    "tpu, one allocation": (Moment.COMPILING, "TPU", 107374182400, None, 17179869184),
    "tpu, running": (Moment.RUNNING, "TPU", 196 * MIB, round(60.94 * MIB), None),
    "tpu, loading": (Moment.LOADING, "TPU", round(10.51 * GIB), round(8.97 * GIB), None),
}


def posted(beginning: str) -> str:
    (text,) = (log.text for title, log in POSTED.items() if title.startswith(beginning))
    return text


def asked(size_bytes: int) -> str:
    return f"XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate {size_bytes} bytes."


def said(explanation: Explanation) -> str:
    return " ".join(sentences(explanation))


@pytest.fixture(scope="module")
def report() -> Report:
    step = Step()
    w = step.argument("params['w']", Role.PARAMS, f32(64, 64))
    x = step.argument("x", Role.BATCH, f32(32, 64))
    h = step.op("h", "dot", f32(32, 64), [x, w], FORWARD, frame=step.frame("/model.py", 12))
    dw = step.op("dw", "dot", f32(64, 64), [h, x], BACKWARD)
    step.result(step.op("new_w", "subtract", f32(64, 64), [w, dw], PLAIN))
    return analyze(step.capture())


@pytest.mark.parametrize("beginning", READ)
def test_posted_messages_are_read(beginning: str) -> None:
    log = read_log(posted(beginning))
    assert (log.when, log.device, log.asked_bytes, log.free_bytes, log.capacity_bytes) == READ[beginning]


def test_every_posted_message_is_tested() -> None:
    told = [title for title in POSTED if any(title.startswith(beginning) for beginning in READ)]
    assert len(told) == len(READ) >= 10
    assert all(title.startswith("the allocator") for title in POSTED if title not in told)


@pytest.mark.parametrize("log", POSTED.values(), ids=POSTED)
def test_every_posted_message_can_be_printed(log: Any) -> None:
    text = log.text if "trying" in log.text or "emory" in log.text else log.text + asked(500_000_000)
    try:
        explanation = explain(read_log(text), [])
    except MemprofError:
        explanation = explain(read_log(text + asked(500_000_000)), [])
    shown = FORMAT.lower(explanation_document(explanation, top=10), RenderOptions(width=80))
    assert "out of memory" in shown
    assert explanation_json(explanation, sentences(explanation)).asked_bytes == explanation.log.asked_bytes


def test_the_buffers_that_xla_lists_have_a_phase_and_scopes() -> None:
    (found,) = explain(read_log(posted("tpu, compiling, buffers")), []).listed
    assert (found.phase, found.scopes) == (
        Phase.FORWARD,
        "FlaxFalconForCausalLMModule/transformer/h/0/self_attention",
    )
    assert (found.listed.array, found.listed.label) == ("f32[32,4096,4096]", "fusion.1265.remat3")
    result, argument = read_log(posted("gpu, program listed")).buffers
    assert result.source.endswith("/internal/models.py:689")
    assert argument == ListedBuffer(size_bytes=384 * 1024, array="f32[256,128,3]", kind="argument")


def test_what_was_asked_for_is_told_by_the_sums_of_the_program() -> None:
    assert explain(read_log(posted("gpu, program summed up")), []).asked_for is AskedFor.TEMP_BLOCK
    assert explain(read_log(posted("gpu, program listed")), []).asked_for is AskedFor.RESULTS
    assert explain(read_log(asked(7)), []).asked_for is AskedFor.UNKNOWN


def test_with_the_program_it_is_the_buffer_itself(report: Report) -> None:
    of_temps = explain(read_log(asked(report.compiler.temp_bytes)), [report])
    assert (of_temps.asked_for, of_temps.program) == (AskedFor.TEMP_BLOCK, report)
    assert [each.category for each in of_temps.asked] == [Category.GRADIENTS, Category.ACTIVATIONS]
    assert "is the temp block of net baseline" in said(of_temps)
    result = explain(read_log(asked(64 * 64 * 4 + 255)), [report])  # rounded up to a block of the allocator
    assert result.asked_for is AskedFor.BUFFER
    assert explain(read_log(asked(64 * 64 * 4 + 256)), [report]).program is None
    assert explain(read_log(asked(64 * 64 * 4 - 1)), [report]).program is None
    assert "None of the given programs" in said(explain(read_log(asked(1)), [report]))


def test_a_listed_buffer_is_found_in_the_program(report: Report) -> None:
    text = f"{asked(1)}\n\tBuffer 1:\n\t\tSize: 8.0KiB\n\t\tXLA Label: h\n\t\tShape: f32[32,64]\n\t\t=====\n"
    (found,) = explain(read_log(text), [report]).listed
    assert found.buffer is not None
    assert (found.buffer.category, found.buffer.source) == (Category.ACTIVATIONS, "/model.py:12")


def test_a_fragmented_pool_is_told_from_one_that_is_full() -> None:
    bins = posted("the allocator's bins")
    fragmented = explain(read_log(bins + asked(6_500_000_000)), [])
    assert fragmented.free_bytes == round(14.59 * GIB) - round(8.49 * GIB)
    assert "The pool is fragmented" in said(fragmented)
    full = explain(read_log(posted("the allocator's chunks") + asked(300_000)), [])
    assert (full.free_bytes, full.capacity_bytes) == (503270604 - 503061248, 503270604)
    assert "88.5 KiB were missing" in said(full)
    assert full.log.pool is not None
    assert full.log.pool.largest_chunks[0] == (3964928, 124)
    assert "exceeds the whole memory of one device" in said(
        explain(read_log(posted("the allocator's chunks") + asked(2**40)), [])
    )


def test_what_xla_tried_itself_is_told() -> None:
    text = said(explain(read_log(posted("gpu, several devices")), []))
    assert "tried to stay below 21.1 GiB by recomputing values, and did not get below 90.7 GiB" in text
    assert "About 63% of the allocator's pool was in use" in text
    assert "arguments and results alone are more" in said(explain(read_log(posted("gpu, far more")), []))
    assert "2 further warnings are attempts" in said(explain(read_log(posted("gpu, after tries")), []))


def test_lines_of_a_launcher_and_of_a_quotation_are_read_too() -> None:
    for before in ("0: ", "[3]: ", "> "):
        text = "".join(f"{before}{line}\n" for line in posted("gpu, program listed").splitlines())
        assert read_log(text).buffers == read_log(posted("gpu, program listed")).buffers


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the log has no out-of-memory error"),
        ("step 1 loss 2.3\n", "the log has no out-of-memory error"),
        ("RESOURCE_EXHAUSTED: a form to come\n", "in a form that memprof does not know.*a form to come"),
        (posted("gpu, after tries").rpartition("jaxlib")[0], "2 warnings of XLA's autotuner"),
    ],
)
def test_a_log_that_does_not_say_it_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(MemprofError, match=sentence):
        read_log(text)


@pytest.mark.parametrize(("num_before", "is_cut"), [(10, False), (149, False), (150, True), (250, True)])
def test_of_a_long_line_the_message_is_shown(num_before: int, is_cut: bool) -> None:
    sentence = "Out of memory while trying to allocate 5 bytes."
    message = read_log(" ".join(["x" * (num_before - 1), sentence, "y" * 400])).message
    assert len(message) == 303
    assert message.endswith("...")
    assert message.startswith("Out of memory" if is_cut else "x" * (num_before - 1))


def test_the_list_of_buffers_sums_up_the_rest() -> None:
    """5, 3 and 2 GiB: the first row has half of the total, the rest is the other half."""
    listed = tuple(ListedBuffer(size_bytes=size * GIB, array=f"f32[{size}]") for size in (5, 3, 2))
    log = OutOfMemory(message="", when=Moment.COMPILING, device="TPU", asked_bytes=None, buffers=listed)
    tables = [block for block in explanation_document(explain(log, []), top=1).blocks if isinstance(block, Table)]
    assert [
        [[cell.text for cell in row.cells[:3] if isinstance(cell, Cell)] for row in table.rows] for table in tables
    ] == [[["f32[5]", "5.00 GiB", "50.0%"], ["(2 more)", "5.00 GiB", ""]]]


@pytest.mark.parametrize(
    ("asked_gib", "free_gib", "capacity_gib", "largest_gib", "sentence"),
    [
        (7, 5, 6, None, "It exceeds the whole memory of one device, 6.00 GiB, by 1.00 GiB:"),
        (6, 5, 6, None, "1.00 GiB were missing;"),
        (5, 5, 6, 3, "The pool is fragmented: 5.00 GiB were free, in blocks of at most 3.00 GiB."),
        (5, 5, 6, None, "The pool is fragmented: 5.00 GiB were free, but not in one block."),
    ],
)
def test_why_memory_could_not_be_had(
    asked_gib: int, free_gib: int, capacity_gib: int, largest_gib: int | None, sentence: str
) -> None:
    pool = Pool(
        limit_bytes=capacity_gib * GIB,
        in_use_bytes=(capacity_gib - free_gib) * GIB,
        largest_free_bytes=largest_gib and largest_gib * GIB,
    )
    log = OutOfMemory(message="", when=Moment.RUNNING, device="GPU", asked_bytes=asked_gib * GIB, pool=pool)
    reasons = ("It exceeds the whole memory", "GiB were missing", "The pool is fragmented")
    found = [each for each in sentences(explain(log, [])) if any(reason in each for reason in reasons)]
    assert [each[: len(sentence)] for each in found] == [sentence]
