"""Engines that TensorRT for RTX builds from ONNX models, without a GPU or a driver.

    model.onnx ──▶ builder.py, in a separate process ──▶ messages of the builder ──▶ build_log.py ──▶ Engine

`build.py` starts and ends the process; `onnx_model.py` reads and changes the model; `builder.py` is the only module
that imports TensorRT. The builder's messages hold the totals, and each layer. Facts that only the runtime reports (the
size of an execution context) need a device, and are not included.
"""
