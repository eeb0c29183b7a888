"""Rules on logits, the widest arrays of a language model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import prod

from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import Report
from memprof.studies.advice.advice import Proposal
from memprof.studies.advice.recomputation import repeated_modules
from memprof.studies.advice.step_kind import MADE_IN_PASSES, is_inference
from memprof.studies.advice.what_if import Instead, amount, changed_at_peak, made_at
from memprof.workloads.intents import Aim, Intent

_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
_NUM_CHUNKS = 8  # of the loss
_MIN_WIDTH_RATIO = 2  # logits are this many times as wide as the next widest array


def chunked_loss(report: Report) -> Iterator[Proposal]:
    """Propose to compute the loss in chunks, if whole logits or their cotangents exist at the peak."""
    classes = num_classes(report)
    if classes is None:
        return

    def without(buffer: LiveBuffer) -> Instead | None:
        return Instead(size_bytes=buffer.size_bytes // _NUM_CHUNKS) if is_logits(buffer, classes) else None

    logits = changed_at_peak(report, without)
    if not logits:
        return
    yield Proposal(
        intent=Intent(aim=Aim.CHUNK_LOSS, num_parts=_NUM_CHUNKS),
        what=f"Compute the logits and their loss in {_NUM_CHUNKS} chunks",
        evidence=f"{amount(logits, 'arrays')} at the peak have {classes:,} columns; the largest holds "
        f"{logits[0].size_bytes:,} bytes and is made at {made_at(logits[0])}",
        cost="recomputes the last matrix product of the forward pass",
        without=without,
    )


def num_classes(report: Report) -> int | None:
    """Return the number of columns of the logits; None if there are no logits.

    Logits are the widest arrays. They are made last in the forward pass, outside of layers and loops, and are an input
    of a softmax, or of its logarithm.
    """
    repeated = {path for paths in repeated_modules(report).values() for path in paths}
    lengths = {loop.trip_count for loop in report.program.loops}
    by_width: dict[int, list[LiveBuffer]] = defaultdict(list)
    for buffer in report.temp_buffers:
        is_array = buffer.category in MADE_IN_PASSES and buffer.dtype in _FLOATS and len(buffer.shape) > 1
        if is_array and not buffer.is_of_attention:
            by_width[buffer.shape[-1]].append(buffer)
    widths = sorted(by_width, reverse=True)
    if len(widths) < 2 or widths[0] < _MIN_WIDTH_RATIO * widths[1]:
        return None
    widest = by_width[widths[0]]
    if not any(buffer.is_of_softmax for buffer in widest):
        return None
    if {buffer.shape for buffer in widest if buffer.is_of_softmax} == {(widths[0], widths[0])}:
        return None  # a contrastive loss compares all rows
    if not {Phase.FORWARD, Phase.BACKWARD} <= {buffer.phase for buffer in widest} or any(
        buffer.module in repeated or buffer.shape[0] in lengths or "/while/" in buffer.op for buffer in widest
    ):
        return None
    enough = max(buffer.size_bytes for buffer in widest) / 10
    others = [buffer for width in widths[1:] for buffer in by_width[width] if buffer.size_bytes > enough]
    return widths[0] if _last_forward(widest) >= _last_forward(others) else None


def _last_forward(buffers: Iterable[LiveBuffer]) -> int:
    return max((buffer.start for buffer in buffers if buffer.phase is Phase.FORWARD), default=-1)


def is_logits(buffer: LiveBuffer, classes: int) -> bool:
    """Whether a buffer of the passes has a column for each class."""
    return buffer.category in MADE_IN_PASSES and len(buffer.shape) > 1 and buffer.shape[-1] == classes


def whole_prompt_logits(report: Report) -> Iterator[Proposal]:
    """Propose to compute only the last token's logits, if those of the whole prompt are live at the peak."""
    if not is_inference(report):
        return
    prompts = {leaf.shape for leaf in report.arguments if leaf.role is Role.BATCH and leaf.dtype.startswith("int")}
    rows = {prod(shape): shape[-1] for shape in prompts if len(shape) == 2 and shape[-1] > 1}
    classes = {length for leaf in report.arguments if leaf.role is Role.PARAMS for length in leaf.shape}
    has_cache = any(leaf.role is Role.KV_CACHE for leaf in report.arguments)

    def without(buffer: LiveBuffer) -> Instead | None:
        is_made = buffer.category in MADE_IN_PASSES or buffer.category is Category.OUTPUTS
        num_rows = prod(buffer.shape[:-1])
        if not (is_made and buffer.dtype in ("f32", "bf16", "f16") and num_rows in rows and buffer.shape[-1] in wide):
            return None
        return Instead(size_bytes=buffer.size_bytes // rows[num_rows])

    wide = {
        buffer.shape[-1]
        for buffer in report.buffers
        if buffer.category is Category.OUTPUTS and buffer.shape and prod(buffer.shape[:-1]) in rows
    } & classes
    logits = changed_at_peak(report, without)
    if not (has_cache and logits):
        return
    yield Proposal(
        intent=Intent(aim=Aim.KEEP_LAST_LOGITS),
        what="Compute only the logits of each prompt's last token",
        evidence=f"{amount(logits, 'arrays')} at the peak hold logits of every token; the largest is made at"
        f" {made_at(logits[0])}",
        cost="none, unless the prompt's own probabilities are asked for",
        without=without,
    )
