"""Rules for temporary memory: arrays of the forward and backward passes, scratch, and fragmentation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from memprof.analysis.records.categories import Category
from memprof.analysis.records.live_buffer import LiveBuffer, array_type
from memprof.analysis.records.report import ModuleNode, Report
from memprof.studies.advice.advice import Proposal
from memprof.studies.advice.logits import is_logits, num_classes
from memprof.studies.advice.recomputation import repeated_modules
from memprof.studies.advice.step_kind import MADE_IN_PASSES, is_inference
from memprof.studies.advice.what_if import MAX_SAVED_IN_HALF, Instead, amount, changed_at_peak, made_at
from memprof.workloads.intents import Aim, Intent

_HALF_DTYPES = ("bf16", "f16")
_MIN_NARROW_SHARE = 0.25  # of the largest float32 array, or of all: fewer 16-bit bytes do not show mixed precision
# Last parts of the names of operations that have no 16-bit form.
_EXACT_OPERATIONS = ("cholesky", "triangular_solve", "lu", "eigh", "eig", "svd", "qr", "householder_product", "fft")
_DRAWS = "jit(_bernoulli)"
_DISTINCT_SUMS = 2**8  # equal amounts that bfloat16 can add up, with its 8 bits, before the next one is lost
_MIN_CAPABILITY_OF_ATTENTION = (8, 0)  # of cuDNN's kernel
_HUGE_SHARE = 0.2  # of the footprint
_MAX_PIECES = 32  # of a huge array
_CUBLAS_PREFIX = "__cublas"  # first part of XLA's names of cuBLAS calls
# Dtypes of the matrix products that XLA generates. Complex products stay with cuBLAS; with the option they requested
# 33,554,432 bytes instead of 4,194,304 (jax 0.10.2, H100).
_GENERATED = frozenset({"f16", "bf16", "f32"})
_MIN_CAPABILITY_OF_GENERATED = (8, 0)  # XLA generates no products below it: on a T4 the option changes no scratch


def half_precision(report: Report) -> Iterator[Proposal]:
    """Propose bfloat16 for activations in float32.

    A step that already computes in 16 or 8 bits keeps some values in float32 on purpose. Factorizations and transforms
    have no 16-bit form.
    """
    wide = changed_at_peak(report, _in_half)
    passes = [buffer for buffer in report.temp_buffers if buffer.category in MADE_IN_PASSES]
    narrow = [buffer.size_bytes for buffer in passes if _is_narrow(buffer.dtype)]
    all_wide = sum(buffer.size_bytes for buffer in passes if buffer.dtype == "f32")
    is_narrow = bool(wide and narrow) and (
        max(narrow) >= _MIN_NARROW_SHARE * wide[0].size_bytes or sum(narrow) >= _MIN_NARROW_SHARE * all_wide
    )
    temps = _wide_temps(report)
    is_exact = any(buffer.op.rpartition("/")[2] in _EXACT_OPERATIONS for buffer in passes)
    if any(buffer.category is Category.ACTIVATIONS for buffer in wide) and not (is_narrow or is_exact):
        yield Proposal(
            intent=Intent(aim=Aim.CAST_PASSES),
            what="Compute in bfloat16, with parameters and optimizer in float32",
            evidence=f"{amount(temps, 'arrays')} that the step makes are float32 at the peak",
            cost="8 bits of mantissa in the passes; softmax, normalization and loss stay in float32"
            + _long_loop(temps),
            without=_in_half,
            at_most_bytes=int(MAX_SAVED_IN_HALF * sum(buffer.size_bytes for buffer in temps)),
        )


def _long_loop(temps: Iterable[LiveBuffer]) -> str:
    """Warn of a loop so long that its state, such as a solver's, may lose in bfloat16 what each iteration adds."""
    longest = max((each.shape[0] for each in temps if each.is_stacked and each.shape), default=0)
    is_long = longest > _DISTINCT_SUMS
    return f", and so does the state of the loop of {longest:,} iterations if each adds little to it" if is_long else ""


def _wide_temps(report: Report) -> list[LiveBuffer]:
    """Return the float32 temporaries that are live at the peak."""
    return [buffer for buffer in report.buffers if buffer.is_temp and buffer.dtype == "f32"]


def _is_narrow(dtype: str) -> bool:
    return dtype in _HALF_DTYPES or dtype.startswith("f8")


def _in_half(buffer: LiveBuffer) -> Instead | None:
    """Return half of a float32 array of the passes, except the first cotangents: the loss stays in float32."""
    is_of_loss = buffer.category is Category.COTANGENTS and not buffer.module
    is_wide = buffer.dtype == "f32" and buffer.category in MADE_IN_PASSES and not is_of_loss
    return Instead(size_bytes=buffer.size_bytes // 2) if is_wide else None


def flash_attention(report: Report) -> Iterator[Proposal]:
    """Propose a fused kernel for an attention that keeps its probabilities.

    Data flow identifies them (see `patterns.py`); their shape would not suffice.
    """
    changed = changed_at_peak(report, _without_probabilities)
    if not any(buffer.category is Category.ACTIVATIONS for buffer in changed):
        return
    evidence = (
        f"{amount(changed, 'arrays')} at the peak hold a number for each query and key of an attention; the largest"
        f" is made at {made_at(changed[0])}"
    )
    if (report.target.cuda_capability or (0, 0)) < _MIN_CAPABILITY_OF_ATTENTION:
        yield Proposal(
            intent=Intent(aim=Aim.CHUNK_ATTENTION),
            what="Attend with one block of queries at a time, and recompute its probabilities",
            evidence=evidence,
            cost="recomputes the products of queries and keys, in a loop",
            without=_without_probabilities,
        )
        return
    dtype = next((buffer.dtype for buffer in changed if buffer.dtype in _HALF_DTYPES), "f32")
    modules = tuple({f"{buffer.module}/" for buffer in changed})
    others = [
        buffer
        for buffer in _wide_temps(report)
        if f"{buffer.module}/".startswith(modules) and _without_probabilities(buffer) is None
    ]
    drops = _drops(report, changed)
    yield Proposal(
        intent=Intent(aim=Aim.FUSE_ATTENTION, dtype=dtype, drops=drops),
        what="Use a fused attention kernel, without dropout of probabilities"
        if drops
        else "Use an attention kernel that never stores the probabilities",
        evidence=evidence,
        cost="no time, it is usually faster; it needs 16-bit inputs, and cuDNN on NVIDIA's GPUs"
        + _odd_lengths(changed),
        without=_without_probabilities,
        at_most_bytes=sum(buffer.size_bytes for buffer in changed)
        + int(MAX_SAVED_IN_HALF * sum(buffer.size_bytes for buffer in others) if dtype == "f32" else 0),
    )


def _drops(report: Report, probabilities: Iterable[LiveBuffer]) -> bool:
    """Whether some probabilities of an attention are dropped: all libraries draw which with `jax.random.bernoulli`."""
    lengths = {each.shape[-2:] for each in probabilities}
    drawn = (each for each in report.buffers if _DRAWS in each.op)
    return bool(report.config.get("attention_dropout_rate")) or any(each.shape[-2:] in lengths for each in drawn)


def _odd_lengths(probabilities: Iterable[LiveBuffer]) -> str:
    """Describe the limits of an odd number of queries or keys (jax 0.10 to 0.12, `check_is_flash_attention`)."""
    odd = sorted({length for buffer in probabilities for length in buffer.shape[-2:] if length % 2})
    lengths = " and ".join(map(str, odd))
    how = "pad queries, keys and values, and give key_value_seq_lengths"
    return f"; in training, JAX refuses an odd length ({lengths} here): {how}" if odd else ""


def _without_probabilities(buffer: LiveBuffer) -> Instead | None:
    is_held = buffer.is_of_attention and buffer.category in MADE_IN_PASSES
    return Instead(size_bytes=0) if is_held else None


def huge_buffer(report: Report) -> Iterator[Proposal]:
    """Propose to split a single array that holds a large share of the peak, and name its source line."""
    largest = _largest(report)
    if largest is None:
        return
    num_pieces = min(_MAX_PIECES, largest.shape[0])
    trains = not is_inference(report)

    def without(buffer: LiveBuffer) -> Instead | None:
        """Split the array, the elementwise results of it, and their cotangents."""
        is_cut = buffer.family == largest.family and buffer.category in MADE_IN_PASSES
        return Instead(size_bytes=buffer.size_bytes // num_pieces) if is_cut else None

    yield Proposal(
        intent=Intent(aim=Aim.CHUNK_ARRAY, num_parts=num_pieces, trains=trains),
        what=f"Make {array_type(largest.dtype, largest.shape)} in pieces, or not at all",
        evidence=f"one array holds {largest.size_bytes:,} bytes, "
        f"{largest.size_bytes / report.footprint_bytes:.0%} of the footprint; it is made at "
        f"{made_at(largest)}; with its elementwise results{' and their cotangents' if trains else ''}: "
        f"{amount(changed_at_peak(report, without), 'arrays')} at the peak",
        cost="a loop instead of one operation" + ("; the backward pass recomputes its values" if trains else ""),
        without=without,
    )


def _largest(report: Report) -> LiveBuffer | None:
    """Return the largest array that can be split, if it is huge and no other rule applies to it."""
    classes = num_classes(report)
    return next(
        (
            buffer
            for buffer in report.buffers  # sorted by size
            if buffer.category in MADE_IN_PASSES
            and buffer.size_bytes > _HUGE_SHARE * report.footprint_bytes
            and buffer.family
            and buffer.shape[0] > 1
            and not (buffer.is_of_attention or buffer.is_stacked or (classes and is_logits(buffer, classes)))
        ),
        None,
    )


def workspace(report: Report) -> Iterator[Proposal]:
    """Propose to replace cuBLAS, if scratch memory of its calls is live at the peak."""
    if (report.target.cuda_capability or (0, 0)) < _MIN_CAPABILITY_OF_GENERATED:
        return
    dtypes = {
        buffer.name: buffer.dtype
        for buffer in (*report.buffers, *report.temp_buffers)
        if buffer.category is not Category.WORKSPACE
    }

    def without(buffer: LiveBuffer) -> Instead | None:
        """Remove scratch of matrix products; the option does not affect other libraries (convolutions, sorting)."""
        is_scratch = buffer.category is Category.WORKSPACE and _CUBLAS_PREFIX in buffer.evidence
        return Instead(size_bytes=0) if is_scratch and dtypes.get(buffer.name) in _GENERATED else None

    at_peak = changed_at_peak(report, without)
    if not at_peak:
        return
    yield Proposal(
        intent=Intent(aim=Aim.GENERATE_PRODUCTS),
        what="Let XLA generate the matrix products that now need scratch memory",
        evidence=f"{amount(at_peak, 'arrays')} at the peak are scratch of matrix products by cuBLAS, the largest "
        f"for {at_peak[0].name}",
        cost="matrix products may be slower; measure it",
        without=without,
    )


def fragmentation(report: Report) -> Iterator[Proposal]:
    """Propose a scan over layers, if parts of the temp block are unused at the peak.

    In a decode step, a scan over layers would copy the cache.
    """
    size_bytes = report.categories[Category.FRAGMENTATION]
    layers = [
        family for family, paths in repeated_modules(report).items() if "/" not in family and _are_equal(report, paths)
    ]
    if not (size_bytes and layers) or report.categories[Category.KV_CACHE]:
        return
    yield Proposal(
        intent=Intent(aim=Aim.SCAN_LAYERS),
        what="Scan over equal layers: fewer arrays of equal sizes pack better",
        evidence=f"{size_bytes:,} bytes of the temp block are unused at the peak, and better packing saves no more"
        f" than that; {layers[0]} have equal parameters and are not scanned",
        cost="parameters are stacked"
        if is_inference(report)
        else "parameters are stacked; each activation of all layers is one array, which takes more memory if the"
        " compiler fuses layers now",
        without=lambda buffer: None,
        is_packed=True,
    )


def _are_equal(report: Report, paths: tuple[str, ...]) -> bool:
    """Whether modules have parameters of equal shapes, which can be stacked."""
    return len({tuple(_shapes(node)) for node in report.modules.children if node.path in paths}) == 1


def _shapes(node: ModuleNode) -> Iterator[tuple[str, tuple[int, ...], str]]:
    yield from node.params
    for child in node.children:
        yield from _shapes(child)
