"""Memory snapshots of PyTorch's caching allocator, recorded on a device with `torch.cuda.memory._dump_snapshot`.

    pickle ──▶ plain values, without running code ──▶ Snapshot ──▶ allocations with their purposes ──▶ Capture

`plain_pickle.py` reads the file, `history.py` replays its history, `purposes.py` infers the purpose of an allocation
from Python and C++ stacks, and `capture.py` combines them. This package does not need torch.
"""
