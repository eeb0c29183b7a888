"""A training step of PyTorch, traced on shapes alone: no device, no memory, no JAX.

    spec ──▶ StorageTracer, under FakeTensorMode ──▶ storages with births, deaths, uses ──▶ Trace ──▶ analysis

`trace_step.py` runs the step; `tracer.py` sees each operation; `places.py` says in which module and on which source line it
is; `cuda_semantics.py` makes tensors without a device take the paths that CUDA tensors take; `categories.py` says what
each storage is for. Only `step_spec.py` and `categories.py` can be imported without torch.
"""
