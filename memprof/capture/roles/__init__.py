"""The roles of a step's arguments: parameters, optimizer state, input data, other state.

The data flow of the traced program decides (`by_use.py`): what comes back (`comes_back.py`), and what a gradient
updates (`walk.py`, one pass through the program). Types of containers are evidence beside it (`by_type.py`). Input data
are known by the axes along which the program applies parameters (`by_data.py`, `axes.py`); the rest by its neighbours
and shapes (`infer.py`, which asks all in order). A substring of a name never decides. `by_program.py` does the same for
programs compiled elsewhere; `updates.py` is what both share.
"""
