"""The effect of the order of operations on the peak: values that it keeps live, and the peak of other orders."""
