"""What the arguments of a step are for: parameters, optimizer state, input data, other state.

Inferred from the types of the containers (`by_type.py`), from what the traced program does with the arguments
(`by_use.py`, on one pass by `walk.py`), from the axes along which it applies parameters (`by_data.py`, `axes.py`),
and, for what is left, from what lies beside it and from shapes (`infer.py`, which asks all in order). Never from a
substring of a name. Of a program that others have compiled: `by_program.py`. What both take from what is updated is in
`updates.py`.
"""
