"""The roles of a step's arguments: parameters, optimizer state, input data, other state.

The data flow of the traced program decides (`by_use.py`): which leaves come back (`comes_back.py`), and which ones a
gradient updates (`walk.py`, one pass through the program). Container types are additional evidence (`by_type.py`).
Input data are recognised by the axes along which the program applies parameters (`by_data.py`, `axes.py`), and the
remaining leaves by their neighbours and shapes. `infer.py` applies these rules in order. A substring of a name never
decides. `by_program.py` infers roles for programs compiled elsewhere; both share `updates.py`.
"""
