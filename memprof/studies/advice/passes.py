"""Rules on what a step makes on its way: arrays of the forward and backward pass, scratch, and gaps between them."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.analysis.records.categories import Category
from memprof.analysis.records.live_buffer import LiveBuffer, array_type
from memprof.analysis.records.report import ModuleNode, Report
from memprof.studies.advice.advice import Proposal
from memprof.studies.advice.logits import is_logits, num_classes
from memprof.studies.advice.recomputation import repeated_modules
from memprof.studies.advice.step_kind import MADE_IN_PASSES, is_inference
from memprof.studies.advice.what_if import Instead, amount, changed_at_peak, made_at
from memprof.workloads.intents import Aim, Intent

_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
_HALF = ("bf16", "f16")
_SHARE = 0.25  # of the largest array in float32, or of all: less in 16 bits says little
# In bfloat16, of all float32 arrays at the peak: half, and what XLA then fuses or frees earlier. One of nine programs
# for an H100 saved 58%, three 51 to 52% (jax 0.12.0.1).
_MOST_IN_HALF = 0.6
# Primitives without a 16-bit form, as the names of operations end.
_EXACT = ("cholesky", "triangular_solve", "lu", "eigh", "eig", "svd", "qr", "householder_product", "fft")
_LEAST_CAPABILITY_OF_ATTENTION = (8, 0)  # of cuDNN's kernel
_HUGE = 0.2  # of the footprint
_MOST_PIECES = 32  # of a huge array
_OF_CUBLAS = "__cublas"  # how XLA's names of its matrix products begin (jaxlib 0.10.2 to 0.12)
# What XLA generates matrix products of. Complex products stay with the library, and asked for 33,554,432 bytes instead
# of 4,194,304 with the option (jax 0.10.2, H100).
_GENERATED = frozenset({"f16", "bf16", "f32"})
_LEAST_CAPABILITY_OF_GENERATED = (8, 0)  # below it XLA generates none: on a T4 the option leaves all scratch as it is


def half_precision(report: Report) -> Iterator[Proposal]:
    """Activations in float32 that bfloat16 would hold in half the bytes.

    A step that computes in 16 or 8 bits already keeps some values in float32 on purpose, and factorizations and
    transforms have no 16-bit form.
    """
    wide = changed_at_peak(report, _in_half)
    passes = [buffer for buffer in report.temp_buffers if buffer.category in MADE_IN_PASSES]
    narrow = [buffer.size_bytes for buffer in passes if _is_narrow(buffer.dtype)]
    all_wide = sum(buffer.size_bytes for buffer in passes if buffer.dtype == "f32")
    is_narrow = bool(wide and narrow) and (
        max(narrow) >= _SHARE * wide[0].size_bytes or sum(narrow) >= _SHARE * all_wide
    )
    temps = _wide_temps(report)
    is_exact = any(buffer.op.rpartition("/")[2] in _EXACT for buffer in passes)
    if any(buffer.category is Category.ACTIVATIONS for buffer in wide) and not (is_narrow or is_exact):
        yield Proposal(
            intent=Intent(aim=Aim.CAST_PASSES),
            what="Compute in bfloat16, with parameters and optimizer in float32",
            evidence=f"{amount(temps, 'arrays')} that the step makes, are float32 at the peak",
            cost="8 bits of mantissa in the passes; softmax, normalization and loss stay in float32",
            without=_in_half,
            at_most_bytes=int(_MOST_IN_HALF * sum(buffer.size_bytes for buffer in temps)),
        )


def _wide_temps(report: Report) -> list[LiveBuffer]:
    """What a step makes in float32, as far as it is live at the peak."""
    return [buffer for buffer in report.buffers if buffer.is_temp and buffer.dtype == "f32"]


def _is_narrow(dtype: str) -> bool:
    return dtype in _HALF or dtype.startswith("f8")


def _in_half(buffer: LiveBuffer) -> Instead | None:
    """The loss is computed in float32, and with it what its gradient begins with."""
    is_of_loss = buffer.category is Category.COTANGENTS and not buffer.module
    is_wide = buffer.dtype == "f32" and buffer.category in MADE_IN_PASSES and not is_of_loss
    return Instead(size_bytes=buffer.size_bytes // 2) if is_wide else None


def flash_attention(report: Report) -> Iterator[Proposal]:
    """Attention that keeps what each query gives to each key.

    Its arrays are known by data flow, see `patterns.py`: an array is not one of these for being square.
    """
    changed = changed_at_peak(report, _without_probabilities)
    if not any(buffer.category is Category.ACTIVATIONS for buffer in changed):
        return
    evidence = (
        f"{amount(changed, 'arrays')} at the peak, hold a number for each query and key of an attention, the largest"
        f" made at {made_at(changed[0])}"
    )
    if (report.target.cuda_capability or (0, 0)) < _LEAST_CAPABILITY_OF_ATTENTION:
        yield Proposal(
            intent=Intent(aim=Aim.CHUNK_ATTENTION),
            what="Attend one block of queries at a time, and recompute its probabilities",
            evidence=evidence,
            cost="the products of queries and keys again, in a loop",
            without=_without_probabilities,
        )
        return
    dtype = next((buffer.dtype for buffer in changed if buffer.dtype in _HALF), "f32")
    modules = tuple({f"{buffer.module}/" for buffer in changed})
    others = [
        buffer
        for buffer in _wide_temps(report)
        if f"{buffer.module}/".startswith(modules) and _without_probabilities(buffer) is None
    ]
    drops = bool(report.config.get("attention_dropout_rate"))  # of memprof's workloads
    yield Proposal(
        intent=Intent(aim=Aim.FUSE_ATTENTION, dtype=dtype, drops=drops),
        what="Use a fused attention kernel, which has no dropout of the probabilities"
        if drops
        else "Use an attention kernel that never holds the probabilities",
        evidence=evidence,
        cost="none in time, usually less; 16-bit inputs, and on NVIDIA's GPUs the cuDNN library",
        without=_without_probabilities,
        at_most_bytes=sum(buffer.size_bytes for buffer in changed)
        + int(_MOST_IN_HALF * sum(buffer.size_bytes for buffer in others) if dtype == "f32" else 0),
    )


def _without_probabilities(buffer: LiveBuffer) -> Instead | None:
    is_held = buffer.is_of_attention and buffer.category in MADE_IN_PASSES
    return Instead(size_bytes=0) if is_held else None


def huge_buffer(report: Report) -> Iterator[Proposal]:
    """One array that makes the peak, with the line that makes it."""
    largest = _largest(report)
    if largest is None:
        return
    num_pieces = min(_MOST_PIECES, largest.shape[0])
    trains = not is_inference(report)

    def without(buffer: LiveBuffer) -> Instead | None:
        """What is made of it element by element goes with it, and so do their cotangents, but nothing else."""
        is_cut = buffer.family == largest.family and buffer.category in MADE_IN_PASSES
        return Instead(size_bytes=buffer.size_bytes // num_pieces) if is_cut else None

    yield Proposal(
        intent=Intent(aim=Aim.CHUNK_ARRAY, num_parts=num_pieces, trains=trains),
        what=f"Make {array_type(largest.dtype, largest.shape)} in pieces, or not at all",
        evidence=f"one array holds {largest.size_bytes:,} bytes, "
        f"{largest.size_bytes / report.footprint_bytes:.0%} of the footprint; it is made at "
        f"{made_at(largest)}; with what is made of it element by element{', and their cotangents' if trains else ''}: "
        f"{amount(changed_at_peak(report, without), 'arrays')} at the peak",
        cost="a loop instead of one operation" + (", and its values again in the backward pass" if trains else ""),
        without=without,
    )


def _largest(report: Report) -> LiveBuffer | None:
    """The largest array that can be cut, if it is huge, and there is no better advice for it."""
    classes = num_classes(report)
    return next(
        (
            buffer
            for buffer in report.buffers  # sorted by size
            if buffer.category in MADE_IN_PASSES
            and buffer.size_bytes > _HUGE * report.footprint_bytes
            and buffer.family
            and buffer.shape[0] > 1
            and not (buffer.is_of_attention or buffer.is_stacked or (classes and is_logits(buffer, classes)))
        ),
        None,
    )


def workspace(report: Report) -> Iterator[Proposal]:
    """Scratch memory of library calls that is alive at the peak."""
    if (report.target.cuda_capability or (0, 0)) < _LEAST_CAPABILITY_OF_GENERATED:
        return
    dtypes = {
        buffer.name: buffer.dtype
        for buffer in (*report.buffers, *report.temp_buffers)
        if buffer.category is not Category.WORKSPACE
    }

    def without(buffer: LiveBuffer) -> Instead | None:
        """Scratch of other libraries (convolutions, sorting) is not for this option to change."""
        is_scratch = buffer.category is Category.WORKSPACE and _OF_CUBLAS in buffer.evidence
        return Instead(size_bytes=0) if is_scratch and dtypes.get(buffer.name) in _GENERATED else None

    at_peak = changed_at_peak(report, without)
    if not at_peak:
        return
    yield Proposal(
        intent=Intent(aim=Aim.GENERATE_PRODUCTS),
        what="Let XLA generate the matrix products that now need scratch memory",
        evidence=f"{amount(at_peak, 'arrays')} at the peak, are scratch of matrix products by cuBLAS, the largest "
        f"for {at_peak[0].name}",
        cost="perhaps slower matrix products: measure",
        without=without,
    )


def fragmentation(report: Report) -> Iterator[Proposal]:
    """Bytes of the temp block that hold nothing at the peak. A scan over layers with a cache would copy the cache."""
    size_bytes = report.categories[Category.FRAGMENTATION]
    layers = [
        family for family, paths in repeated_modules(report).items() if "/" not in family and _are_equal(report, paths)
    ]
    if not (size_bytes and layers) or report.categories[Category.KV_CACHE]:
        return
    yield Proposal(
        intent=Intent(aim=Aim.SCAN_LAYERS),
        what="Scan over equal layers: fewer arrays, of equal sizes, pack better",
        evidence=f"{size_bytes:,} bytes of the temp block hold nothing at the peak, which is the most that packing"
        f" can save; {layers[0]} have equal parameters and are not scanned",
        cost="stacked parameters"
        if is_inference(report)
        else "stacked parameters; activations of all layers in one array each, which hold more where the compiler"
        " fuses layers now",
        without=lambda buffer: None,
        is_packed=True,
    )


def _are_equal(report: Report, paths: tuple[str, ...]) -> bool:
    """Whether modules have parameters of the same shapes, so that these can be stacked."""
    return len({tuple(_shapes(node)) for node in report.modules.children if node.path in paths}) == 1


def _shapes(node: ModuleNode) -> Iterator[tuple[str, tuple[int, ...], str]]:
    yield from node.params
    for child in node.children:
        yield from _shapes(child)
