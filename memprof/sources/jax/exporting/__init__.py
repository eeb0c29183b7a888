"""Export of a step to ONNX: `export.py` writes the file, `lowering.py` and `rules.py` its graph."""
