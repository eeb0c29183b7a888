"""From the user's step to a lowered program: the step, its arguments, and its own jit."""
