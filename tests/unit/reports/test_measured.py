"""The section on what was measured, beside what was predicted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measurements import CPU_RUN, GPU_RUN, MESH_RUN, OUT_OF_MEMORY_RUN
from reports_data import REPORTS

from memprof.analysis.comparison import compare
from memprof.analysis.records.measurement import PoolReading
from memprof.reports.document import Bar, Cell, Facts, Heading, Note, Row, Table, Tone
from memprof.reports.format import format_named
from memprof.reports.options import RenderOptions
from memprof.reports.views.measured import measured_blocks, measured_summary, operation_blocks


def _facts(name: str) -> dict[str, tuple[str, ...]]:
    _, facts, *_ = measured_blocks(REPORTS[name]())
    assert isinstance(facts, Facts)
    return {fact.label: fact.values for fact in facts.facts}


def test_a_step_that_did_not_run_has_no_section() -> None:
    assert measured_blocks(REPORTS["one_buffer"]()) == ()


def test_a_run_on_a_gpu_says_what_each_source_counts() -> None:
    heading, *_ = measured_blocks(REPORTS["measured_on_gpu"]())
    assert heading == Heading(text="Measured", level=2, aside="on NVIDIA H100 80GB HBM3, 4 steps after 2 warm-up steps")
    assert _facts("measured_on_gpu") == {
        "step time": ("median 25.0 ms", "10.0 ms to 40.0 ms for 80% of the steps"),
        "throughput": ("320 examples/s", "327.7K tokens/s"),
        "utilization": ("MFU 26.4%", "of 989 TFLOP/s, dense 16-bit matrix products"),
        "loss": ("4.5 at step 1", "4.25 at step 2", "4 at step 3", "3.25 at step 5", "3 at step 6"),
        "peak": (
            "1.50 KiB, 1,536 bytes (XLA's allocator)",
            "predicted 1.00 KiB",
            "difference +512 B (+50.0%)",
        ),
        "allocator": (
            "1.00 KiB in use before the steps",
            "1.00 KiB in use after the first",
            "1.00 KiB in use after the last",
            "2.00 MiB held of the device",
        ),
        # 498 MiB of the process less the 2 MiB of the pool.
        "outside it": (
            "NVML: the process holds +498 MiB",
            "+496 MiB outside XLA's pool (CUDA context, library handles)",
        ),
    }


def test_where_nvml_does_not_know_the_process_the_device_counts() -> None:
    assert GPU_RUN.driver is not None
    report = REPORTS["measured_on_gpu"]()
    measured = replace(GPU_RUN, driver=replace(GPU_RUN.driver, process_bytes=None))
    text = format_named("terminal").render_report(replace(report, measured=measured), RenderOptions(width=200))
    assert "NVML: the device's use grew by +499 MiB · +497 MiB outside XLA's pool" in text


def test_a_hidden_peak_is_not_told_as_one() -> None:
    assert GPU_RUN.pool is not None
    hidden = replace(GPU_RUN.pool, before_steps=PoolReading(current_bytes=0, peak_bytes=1536))
    report = replace(REPORTS["measured_on_gpu"](), measured=replace(GPU_RUN, pool=hidden))
    text = format_named("terminal").render_report(report, RenderOptions(width=200))
    assert "compiling the step or creating its arguments took this, more than running it" in text
    assert "difference" not in text


def test_a_run_on_several_devices_says_how_far_they_are_apart() -> None:
    report = replace(REPORTS["measured_on_gpu"](), measured=MESH_RUN)
    heading, facts, title, table = measured_blocks(report)
    assert isinstance(heading, Heading)
    assert isinstance(facts, Facts)
    assert heading.aside == "on 4 devices (NVIDIA H100 80GB HBM3) in 2 processes, 4 steps after 2 warm-up steps"
    values = {fact.label: fact.values for fact in facts.facts}
    assert values["peak"][0] == "1.50 KiB, 1,536 bytes (XLA's allocator)"
    # The last one's 1,236 is not above the 1,280 of before the steps: nobody knows its peak, nor how far it is off.
    assert "peaks" not in values
    assert values["arguments"] == ("512 B, 512 bytes on each of 4 devices",)
    assert title == Heading(text="Measured on each device", level=2, aside="XLA's allocator")
    assert isinstance(table, Table)
    texts = [[cell.text for cell in row.cells if isinstance(cell, Cell)] for row in table.rows]
    assert texts == [
        ["cuda:0", "0", "512 B", "1.00 KiB", "1.50 KiB", "+512 B"],
        ["cuda:1", "0", "512 B", "1.00 KiB", "1.40 KiB", "+412 B"],
        ["cuda:2", "1", "512 B", "1.00 KiB", "1.30 KiB", "+312 B"],
        ["cuda:3", "1", "512 B", "1.00 KiB", "hidden", "-"],
    ]
    three = replace(report, measured=replace(MESH_RUN, devices=MESH_RUN.devices[:3]))
    _, facts, *_ = measured_blocks(three)
    assert isinstance(facts, Facts)
    assert {fact.label: fact.values for fact in facts.facts}["peaks"] == (
        "maximum 1.50 KiB (cuda:0)",
        "minimum 1.30 KiB (cuda:2)",
        "imbalance +200 B (+15.0%)",
    )


def test_a_run_on_a_cpu_says_what_its_number_is() -> None:
    facts = _facts("measured_on_cpu")
    # 1 MiB and the 64 bytes of the arguments.
    assert facts["resident"] == (
        "1.00 MiB for arguments and steps (growth of the process)",
        "predicted 260 B",
        "difference +1.00 MiB (+403,223%)",
    )
    assert not facts.keys() & {"peak", "allocator", "outside it", "utilization", "loss"}


def test_the_growth_of_a_process_with_several_devices_is_that_of_all() -> None:
    assert CPU_RUN.resident is not None
    report = REPORTS["measured_on_cpu"]()
    devices = tuple(replace(each, pool=None) for each in MESH_RUN.devices)
    resident = replace(CPU_RUN.resident, num_devices=4)
    _, facts, note = measured_blocks(replace(report, measured=replace(CPU_RUN, resident=resident, devices=devices)))
    assert isinstance(facts, Facts)
    assert {fact.label: fact.values for fact in facts.facts}["resident"][:2] == (
        "1.00 MiB for arguments and steps of 4 devices (growth of the process)",
        "predicted 1.02 KiB",  # four times 260 bytes
    )
    assert isinstance(note, Note)
    assert note.text.endswith("plus the size of the arguments. The share of each device is unknown.")
    *_, alone = measured_blocks(report)
    assert isinstance(alone, Note)
    assert alone.text.endswith("plus the size of the arguments.")


def test_more_devices_than_sixteen_are_counted() -> None:
    devices = tuple(replace(MESH_RUN.devices[0], device=f"cuda:{number:02}") for number in range(18))
    report = replace(REPORTS["measured_on_gpu"](), measured=replace(MESH_RUN, devices=devices))
    *_, table = measured_blocks(report)
    assert isinstance(table, Table)
    names = [_texts(row)[0] for row in table.rows]
    assert names == [*(f"cuda:{number:02}" for number in range(16)), "(2 more)"]


def test_a_step_that_ran_out_of_memory_says_what_it_asked_for() -> None:
    report = REPORTS["out_of_memory"]()
    *_, note = measured_blocks(report)
    ended = "Out of memory while running step 2 of 12: asked for"
    parts = "The compiled program takes 128 GiB; its parts are below."
    assert note == Note(tone=Tone.BAD, text=f"{ended} 128 GiB, with 1.00 GiB of 60.0 GiB in use. {parts}")
    assert measured_summary(report) == (note,)  # no step ended, so nothing else is known
    assert OUT_OF_MEMORY_RUN.out_of_memory is not None
    for unknown in ("in_use_bytes", "limit_bytes"):
        end = replace(OUT_OF_MEMORY_RUN.out_of_memory, asked_bytes=None, **{unknown: None})
        resident = replace(OUT_OF_MEMORY_RUN, out_of_memory=end, resident=CPU_RUN.resident)
        *_, note = measured_blocks(replace(report, measured=resident))
        assert note == Note(tone=Tone.BAD, text=f"{ended} more. {parts}")


def test_a_summary_has_the_numbers_beside_the_prediction_and_no_others() -> None:
    (facts,) = measured_summary(REPORTS["measured_on_gpu"]())
    assert isinstance(facts, Facts)
    every = _facts("measured_on_gpu")
    expected = {"step time": (*every["step time"], *every["throughput"]), "peak": every["peak"]}
    assert {fact.label: fact.values for fact in facts.facts} == expected
    assert measured_summary(REPORTS["one_buffer"]()) == ()


def test_a_comparison_has_columns_for_what_was_measured() -> None:
    rows = [
        replace(REPORTS["one_buffer"](), label="tiny baseline"),
        replace(REPORTS["measured_on_gpu"](), label="tiny measured"),
        replace(REPORTS["out_of_memory"](), label="tiny failed"),
    ]
    text = format_named("terminal").render_comparison(compare(rows, baseline="tiny baseline"), RenderOptions(width=200))
    title = next(line for line in text.splitlines() if line.startswith("configuration"))
    assert title.split()[-5:] == ["step", "tokens/s", "measured", "fits", "effect"]
    rows_of_it = [line.removeprefix("• ") for line in text.splitlines()]  # the best row is marked
    lines = {line.split()[0]: line for line in rows_of_it if line.startswith(("baseline ", "measured ", "fai"))}
    assert "25.0 ms 327.7K 1.50 KiB" in " ".join(lines["measured"].split())
    assert "out of memory" in lines["failed"]
    assert "was measured" not in text


@pytest.mark.parametrize("name", ["terminal", "markdown"])
def test_the_notes_say_what_was_measured(name: str) -> None:
    text = format_named(name).render_report(REPORTS["measured_on_cpu"](), RenderOptions(width=300))
    assert "Only the numbers under Measured were measured" in text
    assert "These numbers were not measured" not in text


def _texts(row: Row) -> list[str]:
    return [cell.text for cell in row.cells if isinstance(cell, Cell)]


def _table(top: int) -> Table:
    heading, table, _ = operation_blocks(REPORTS["measured_on_gpu"](), top=top)
    assert isinstance(heading, Heading)
    assert isinstance(table, Table)
    return table


def test_without_a_trace_there_is_no_table() -> None:
    assert operation_blocks(REPORTS["measured_on_cpu"](), top=10) == ()
    assert operation_blocks(replace(REPORTS["measured_on_gpu"](), measured=None), top=10) == ()


def test_times_and_calls_are_of_one_step_and_loops_are_left_out() -> None:
    table = _table(top=10)
    # Four steps: 60 ms make 15 a step, of 20; 8 calls make 2.
    assert [_texts(row) for row in table.rows] == [
        ["fusion.3", "15.0 ms", "75.0%", "2", "forward", "mlp", "1.00 KiB", "activations"],
        ["no_buffer", "5.00 ms", "25.0%", "1", "none", "-", "-", "-"],
    ]
    assert table.total is not None
    assert _texts(table.total)[:3] == ["all operations", "20.0 ms", "100.0%"]


def test_what_is_left_out_is_one_row() -> None:
    table = _table(top=1)
    assert _texts(table.rows[1])[:3] == ["(1 more)", "5.00 ms", "25.0%"]
    bars = [cell.value for row in table.rows for cell in row.cells if isinstance(cell, Bar)]
    assert bars == [60_000_000, 20_000_000]
