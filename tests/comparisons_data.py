"""The hand-made comparisons that all formats are tested with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpt2_rows import V100, gpt2
from reports_data import empty, hostile_names, many_buffers, one_buffer

from memprof.analysis.comparison import FailedRow, ReportComparison, Verdict, compare
from memprof.analysis.records.report import Report


def nothing() -> ReportComparison:
    """No rows at all."""
    return ReportComparison(baseline="", rows=(), effects=(), failures=(), differences=())


def one_row() -> ReportComparison:
    """A reference without anything to set against it."""
    return compare([one_buffer()], baseline="tiny baseline")


def all_else_failed() -> ReportComparison:
    """Only the reference gave a report."""
    failures = [
        FailedRow(label="tiny accum3", reason="the batch of 8 does not divide by 3"),
        FailedRow(label="tiny remat", reason="the compiler ran out of host memory"),
    ]
    return compare([one_buffer()], baseline="tiny baseline", failures=failures)


def equal_rows() -> ReportComparison:
    """A row that changes nothing: every delta is zero."""
    verdict = Verdict(
        took_effect=False, evidence="scan: no loop over layers in the program, although one was asked for"
    )
    row = replace(one_buffer(), label="tiny scan", techniques=("scan",))
    return compare([one_buffer(), row], baseline="tiny baseline", verdicts={"tiny scan": [verdict]})


def from_nothing() -> ReportComparison:
    """A reference of no bytes."""
    return compare([empty(), replace(one_buffer(), label="tiny more")], baseline="tiny baseline")


def hostile() -> ReportComparison:
    """Labels, evidence, reasons and differences that try to break the output."""
    first = hostile_names()
    labels = [
        "a|b `c` *d* __e__ @everyone #1 https://example.org",
        '=HYPERLINK("x")',
        "<script>alert(1)</script>\r\n| injected | row |",
        "```\n```",
        "\ud800\x1b[31m \u202e 模型 👩\u200d🚀",
        "very_long_" * 50,
    ]
    rows = [replace(first, label=label, workload=label) for label in labels]
    verdicts = {label: [Verdict(took_effect=number % 2 == 0, evidence=label)] for number, label in enumerate(labels)}
    failures = [FailedRow(label=f"{label}!", reason=label) for label in labels]
    return compare(rows, baseline=labels[0], verdicts=verdicts, failures=failures)


def many(count: int = 2_000) -> ReportComparison:
    """Many buffers: three fifths of them in one report, the others in a second one."""
    rows = [many_buffers(count * 3 // 5), replace(many_buffers(count * 2 // 5), label="tiny fewer")]
    return compare(rows, baseline="tiny baseline")


def techniques() -> ReportComparison:
    """GPT-2 small under eight sets of techniques, the first being the reference."""
    copies = "bf16: 100% of the bytes of activations but the logits are bf16"
    loop = "accum4: a loop of 4 iterations runs forward and backward pass; gradients are accumulated in 475 MiB"
    remat = "remat: 276 operations are evaluated again in the backward pass; activations are 10.5% of the reference's"
    scan = "scan: a loop of 12 iterations in the forward pass and one in the backward pass"
    donate = "donate: 1.39 GiB of outputs alias donated arguments, all that was donated"
    evidence = {
        "baseline": [],
        "donate": [donate],
        "bf16": [copies],
        "bf16+accum4": [copies, loop],
        "bf16+remat": [copies, remat],
        "bf16+scan": [copies, scan],
        "opt=lion": ["opt=lion: optimizer state is 475 MiB, 4 bytes a parameter"],
        "bf16+donate+scan+remat+accum4": [copies, donate, scan, remat, loop],
    }
    verdicts = {
        f"transformer {name}": [Verdict(took_effect=True, evidence=sentence) for sentence in sentences]
        for name, sentences in evidence.items()
    }
    return compare([gpt2(name) for name in evidence], baseline="transformer baseline", verdicts=verdicts)


def troubled() -> ReportComparison:
    """What can go wrong: a flagged row, one that does not fit, one that failed, another target and another jax."""
    small = replace(V100, name="small-8gb", description="a card of 8 GiB", memory_bytes=8 * 2**30)
    rows = [gpt2("baseline", target=small), gpt2("bf16+scan", target=small), _offloaded(gpt2("bf16+remat"))]
    flagged = Verdict(
        took_effect=False,
        evidence="scan: expected a loop of 12 iterations over the layers, but the program has no loop",
    )
    bf16 = Verdict(took_effect=True, evidence="bf16: 100% of the bytes of activations but the logits are bf16")
    return compare(
        rows,
        baseline="transformer baseline",
        verdicts={"transformer bf16+scan": [bf16, flagged], "transformer bf16+remat": [bf16]},
        failures=[FailedRow(label="transformer accum3", reason="the batch of 8 does not divide by 3")],
    )


def _offloaded(row: Report) -> Report:
    """Made with another jax, and with 256 MiB in host memory."""
    return replace(
        row,
        toolchain=replace(row.toolchain, jax="0.10.2", jaxlib="0.10.2", xla_flags="--xla_gpu_enable_triton_gemm=false"),
        program=replace(row.program, host_bytes=256 * 2**20),
    )


COMPARISONS: Mapping[str, Callable[[], ReportComparison]] = {
    "nothing": nothing,
    "one_row": one_row,
    "all_else_failed": all_else_failed,
    "equal_rows": equal_rows,
    "from_nothing": from_nothing,
    "hostile": hostile,
    "many": many,
    "techniques": techniques,
    "troubled": troubled,
}
