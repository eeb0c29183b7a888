"""The roofline bound: the least time of a step by the peaks of its device. `bound.py` is the entry."""
