"""Memory snapshots of PyTorch, built by hand in the format of `torch.cuda.memory._snapshot`. Needs no PyTorch."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.errors import MemprofError
from memprof.sources.snapshot.capture import import_snapshot

MIB = 1 << 20


def _frame(filename: str, name: str, line: int = 1) -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


# Innermost call first, as the allocator records them.
SITE = "/venv/lib/python3.11/site-packages"
MALLOC = _frame("??", "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(int)", 0)
SCRIPT = _frame("/home/me/train.py", "<module>", 7)
CALL = _frame(f"{SITE}/torch/nn/modules/module.py", "_call_impl", 1562)
MAKING = [MALLOC, _frame(f"{SITE}/torch/nn/modules/linear.py", "__init__", 99), SCRIPT]
FORWARD = [MALLOC, _frame("??", "at::_ops::addmm::call(at::Tensor const&)", 0), CALL, SCRIPT]
ENGINE = _frame("??", "torch::autograd::Engine::evaluate_function(std::shared_ptr<GraphTask>&)", 0)
BACKWARD = [MALLOC, _frame("??", "at::_ops::mm::call(at::Tensor const&)", 0), ENGINE]
REPEATED = [MALLOC, CALL, _frame(f"{SITE}/torch/utils/checkpoint.py", "unpack_hook"), ENGINE]
UPDATE = [MALLOC, _frame(f"{SITE}/torch/optim/adamw.py", "_init_group", 99), SCRIPT]
WORKSPACE = [MALLOC, _frame("??", "at::cuda::getCurrentCUDABlasHandle()", 0), *FORWARD[1:]]
OTHER = [MALLOC, SCRIPT]


def _alloc(address: int, size: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"action": "alloc", "addr": address, "size": size, "stream": 0, "frames": frames}


def _free(address: int, size: int, frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    event = {"addr": address, "size": size, "stream": 0, "frames": frames}
    return [{"action": "free_requested", **event}, {"action": "free_completed", **event}]


def _segment(address: int, size: int, action: str = "segment_alloc") -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": []}


def _block(size: int, state: str = "active_allocated", **others: Any) -> dict[str, Any]:
    return {"size": size, "requested_size": size, "state": state, "frames": [], **others}


def _in_segment(address: int, *blocks: dict[str, Any], device: int = 0) -> dict[str, Any]:
    total = sum(block["size"] for block in blocks)
    return {"address": address, "total_size": total, "device": device, "stream": 0, "blocks": list(blocks)}


def made_snapshot() -> dict[str, Any]:
    """A snapshot with a history: a parameter that stays, and an activation that is made and freed."""
    events = [
        _segment(1 << 20, 4096),
        _alloc(1 << 20, 1024, MAKING),
        _alloc((1 << 20) + 1024, 2048, FORWARD),
        *_free((1 << 20) + 1024, 2048, BACKWARD),
    ]
    return {"segments": [_in_segment(1 << 20, _block(1024), _block(3072, "inactive"))], "device_traces": [events]}


def _import(snapshot: Any, folder: Path) -> Capture:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    return import_snapshot(path, target=None)


def _category_of(*, made: list[Any], freed: list[Any] | None, folder: Path) -> LiveBuffer:
    """What becomes of one allocation; a larger one that lives all the time puts the peak where it is live."""
    events = [_segment(0, 4 * MIB), _alloc(0, MIB, made), *([] if freed is None else _free(0, MIB, freed))]
    state = "active_allocated" if freed is None else "inactive"
    snapshot = {
        "segments": [_in_segment(0, _block(MIB, state), _block(3 * MIB, "inactive"))],
        "device_traces": [events],
    }
    (buffer,) = analyze(_import(snapshot, folder)).buffers
    return buffer


def test_the_peak_and_its_largest_blocks(tmp_path: Path) -> None:
    events = [
        _segment(0, 8 * MIB),
        _alloc(0, 3 * MIB, MAKING),
        _alloc(3 * MIB, 4 * MIB, FORWARD),
        _segment(100 * MIB, 20 * MIB),
        _alloc(100 * MIB, 12 * MIB, BACKWARD),
        *_free(3 * MIB, 4 * MIB, BACKWARD),
        *_free(100 * MIB, 12 * MIB, BACKWARD),
        _segment(100 * MIB, 20 * MIB, "segment_free"),
    ]
    snapshot = {
        "segments": [_in_segment(0, _block(3 * MIB), _block(5 * MIB, "inactive"))],
        "device_traces": [events],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    }
    capture = _import(snapshot, tmp_path)
    report = analyze(capture)
    assert report.footprint_bytes == 28 * MIB  # both segments; the second is no longer there at the end
    assert report.live_peak_bytes == 19 * MIB
    assert [(b.size_bytes, b.category, b.op, b.source, b.library) for b in report.buffers] == [
        (12 * MIB, Category.COTANGENTS, "aten.mm", "", ""),
        (4 * MIB, Category.ACTIVATIONS, "aten.addmm", "/home/me/train.py:7", "torch/nn/modules/module.py:1562"),
        (3 * MIB, Category.PARAMS, "__init__", "/home/me/train.py:7", "torch/nn/modules/linear.py:99"),
    ]
    assert report.categories[Category.FRAGMENTATION] == 9 * MIB
    assert sum(report.categories.values()) == report.footprint_bytes
    assert capture.config["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert [(span.phase, span.start, span.end) for span in report.timeline.phases][:2] == [
        (Phase.NONE, 0, 1),
        (Phase.FORWARD, 2, 3),
    ]


@pytest.mark.parametrize(
    ("made", "freed", "category"),
    [
        (MAKING, None, Category.PARAMS),
        (MAKING, OTHER, Category.UNATTRIBUTED),
        (UPDATE, None, Category.OPTIMIZER_STATE),
        (UPDATE, UPDATE, Category.UPDATE_TEMPS),
        (REPEATED, BACKWARD, Category.RECOMPUTED),
        (BACKWARD, BACKWARD, Category.COTANGENTS),
        (BACKWARD, OTHER, Category.GRADIENTS),
        (BACKWARD, None, Category.GRADIENTS),
        (FORWARD, BACKWARD, Category.ACTIVATIONS),
        (FORWARD, None, Category.ACTIVATIONS),
        (FORWARD, OTHER, Category.FORWARD_TEMPS),
        (WORKSPACE, None, Category.WORKSPACE),
        (OTHER, None, Category.UNATTRIBUTED),
        ([], None, Category.UNATTRIBUTED),
    ],
)
def test_the_stacks_of_both_ends_decide_the_category(
    made: list[Any], freed: list[Any] | None, category: Category, tmp_path: Path
) -> None:
    assert _category_of(made=made, freed=freed, folder=tmp_path).category is category


def test_what_was_allocated_before_the_history_is_known_from_its_end_or_from_its_block(tmp_path: Path) -> None:
    # 5 MiB are freed without having been allocated in the history, and 3 MiB still exist.
    snapshot = {
        "segments": [_in_segment(0, _block(3 * MIB, address=0), _block(5 * MIB, "inactive", address=3 * MIB))],
        "device_traces": [_free(3 * MIB, 5 * MIB, OTHER)],
    }
    capture = _import(snapshot, tmp_path)
    report = analyze(capture)
    assert (report.footprint_bytes, report.live_peak_bytes) == (8 * MIB, 8 * MIB)
    assert {(b.size_bytes, b.evidence) for b in report.buffers} == {
        (3 * MIB, "allocated before the history begins"),
        (5 * MIB, "allocated before the history begins"),
    }
    assert "8,388,608 bytes were allocated before the history begins" in capture.doubts[1]


def test_without_a_history_the_peak_is_the_moment_of_the_snapshot(tmp_path: Path) -> None:
    blocks = _block(MIB), _block(MIB, "inactive"), _block(2 * MIB, "active_pending_free")
    capture = _import({"segments": [_in_segment(0, *blocks)], "device_traces": [[]]}, tmp_path)
    report = analyze(capture)
    assert (report.footprint_bytes, report.live_peak_bytes) == (4 * MIB, 3 * MIB)
    assert "no history" in capture.doubts[1]


def test_a_request_that_failed_is_named_and_not_counted(tmp_path: Path) -> None:
    oom = {"action": "oom", "addr": 0, "size": 7 * MIB, "device_free": MIB, "stream": 0, "frames": OTHER}
    events = [_segment(0, 2 * MIB), _alloc(0, 2 * MIB, FORWARD), oom]
    capture = _import({"segments": [_in_segment(0, _block(2 * MIB))], "device_traces": [events]}, tmp_path)
    assert analyze(capture).live_peak_bytes == 2 * MIB
    assert "A request for 7,340,032 bytes ran out of memory" in capture.doubts[-1]


def test_of_several_devices_the_one_with_the_most_memory_is_read(tmp_path: Path) -> None:
    segments = [_in_segment(0, _block(2 * MIB)), _in_segment(0, _block(6 * MIB), device=1)]
    capture = _import({"segments": segments, "device_traces": [[], []]}, tmp_path)
    assert (capture.config["device"], analyze(capture).footprint_bytes) == (1, 6 * MIB)
    assert "2 devices" in capture.doubts[-1]


def test_texts_of_a_snapshot_cannot_steer_a_terminal(tmp_path: Path) -> None:
    frames = [_frame("/home/me/\x1b[31mtrain.py", "\x1b]0;title", 3)]
    buffer = _category_of(made=frames, freed=None, folder=tmp_path)
    assert buffer.source == "/home/me/\\x1b[31mtrain.py:3"
    assert buffer.stack[0].function == "\\x1b]0;title"


class _Runs:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


class _Refers(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return "outside" if obj == "refer" else None


def _with_reference() -> bytes:
    import io

    file = io.BytesIO()
    _Refers(file).dump({"segments": ["refer"]})
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (pickle.dumps({"segments": _Runs()}), "it has the operation STACK_GLOBAL"),
        (pickle.dumps({"segments": _Runs()}, protocol=0), "it has the operation GLOBAL"),
        (pickle.dumps({"segments": [{1, 2}]}), "it has the operation EMPTY_SET"),
        (_with_reference(), "it has the operation BINPERSID"),
        (b"\x80\x02r\xff\xff\xff\x7f.", "its memo has the number 2147483647"),
        (pickle.dumps({"segments": []})[:-3], "it is not a pickle, or is truncated"),
        (b"\x80\x04e.", "it is not a pickle, or is truncated"),
        (b"\x80\x04\x95" + b"\xff" * 8 + b"}.", "it is not a pickle, or is truncated"),  # a frame of 2**64 bytes
        (b"", "it is not a pickle, or is truncated"),
        (b"PK\x03\x04 a checkpoint", "it is not a pickle, or is truncated"),
        (pickle.dumps([1, 2]), "is not a PyTorch memory snapshot"),
        (pickle.dumps({"weights": [1.0]}), "is not a PyTorch memory snapshot"),
        (pickle.dumps({"segments": [{"address": 0, "total_size": -1}]}), "is not a PyTorch memory snapshot"),
        (pickle.dumps({"segments": [], "device_traces": [[]]}), "no memory was allocated"),
        (
            pickle.dumps({"segments": [], "device_traces": [[_alloc(0, 1, ["no frame"])]]}),  # type: ignore[list-item]
            "has an invalid stack",
        ),
    ],
)
def test_a_file_that_is_no_snapshot_is_refused_and_runs_nothing(
    data: bytes, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(data)
    with pytest.raises(MemprofError, match=sentence):
        import_snapshot(path, target=None)
    assert not (tmp_path / "ran").exists()


def test_a_snapshot_that_contradicts_itself_is_one_sentence(tmp_path: Path) -> None:
    whole = made_snapshot()
    (segment,) = whole["segments"]
    assert analyze(_import(whole, tmp_path)).footprint_bytes == 4096
    with pytest.raises(MemprofError, match="is not a PyTorch memory snapshot: Expected `int` >= 0"):
        _import({**whole, "segments": [{**segment, "device": -1}]}, tmp_path)
    with pytest.raises(
        MemprofError, match="is an incomplete memory snapshot: less memory is reserved than is allocated"
    ):
        _import({**whole, "segments": [{**segment, "total_size": 1024}]}, tmp_path)
