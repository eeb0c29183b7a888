"""The roofline bound: the least time of a step at the peaks of its device. `bound.py` is the entry point."""
