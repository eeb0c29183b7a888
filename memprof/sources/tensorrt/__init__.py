"""An ONNX model, built into an engine by TensorRT for RTX: no GPU and no driver.

    model.onnx ──▶ builder.py, a process of its own ──▶ messages of the builder ──▶ build_log.py ──▶ Engine

`build.py` starts the process and ends it; `onnx_model.py` reads and changes the model; `builder.py` is the only module
that imports TensorRT. The builder's messages hold the totals, and each layer. What only the runtime says (the size of
an execution context) needs a device, and is left out.
"""
