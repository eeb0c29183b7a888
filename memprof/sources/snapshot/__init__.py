"""A memory snapshot of PyTorch's caching allocator, recorded on a device: `torch.cuda.memory._dump_snapshot`.

    pickle ──▶ plain values, nothing is run ──▶ Snapshot ──▶ allocations, each with a purpose ──▶ Capture

`plain_pickle.py` reads the file, `history.py` replays what it records, `purposes.py` decides from Python and C++ stacks
what an allocation is for, `capture.py` puts them together. Nothing here needs torch.
"""
