"""A step as an ONNX model: `export.py` makes the file, `lowering.py` its graph, `onnx_graph.py` knows onnx."""
