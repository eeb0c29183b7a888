"""What the arguments of a step are for: parameters, optimizer state, input data, other state.

Told from the types of the containers (`by_type.py`), from what the traced program does with the arguments
(`by_use.py`), and, for what is left, from their shapes (`infer.py`, which asks all three in order). Never from a
substring of a name.
"""
