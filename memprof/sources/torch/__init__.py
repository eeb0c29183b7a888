"""A training step of PyTorch, traced on shapes alone: no device, no memory, no JAX.

    spec ──▶ StorageTracer, under FakeTensorMode ──▶ storages with births, deaths, uses ──▶ Trace ──▶ analysis

`trace_step.py` runs the step; `tracer.py` sees each operation; `places.py` finds its module and source line;
`cuda_semantics.py` makes tensors on the CPU take the paths that CUDA tensors take; `categories.py` decides the category
of each storage. Only `step_spec.py` and `categories.py` can be imported without torch.
"""
