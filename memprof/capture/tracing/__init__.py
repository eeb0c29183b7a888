"""From what a user gives to a lowered program: the step, its arguments, and the jit that it came with."""
