"""Export of a step to ONNX: `export.py` writes the file, `lowering.py` its graph; `onnx_graph.py` wraps onnx."""
