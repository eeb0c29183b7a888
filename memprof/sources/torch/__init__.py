"""Tracing of PyTorch training steps on shapes alone: without a device, without memory, without JAX.

    spec ──▶ StorageTracer, under FakeTensorMode ──▶ storages with births, deaths, uses ──▶ Trace ──▶ analysis

`trace_step.py` runs the step; `tracer.py` records each operation; `places.py` finds its module and source line;
`cuda_semantics.py` gives tensors on the CPU the behaviour of CUDA tensors; `categories.py` decides the category of each
storage. Only `step_spec.py` and `categories.py` can be imported without torch.
"""
