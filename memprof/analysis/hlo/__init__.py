"""XLA's `HloProto`: the program and its order, the place of each buffer, and its live ranges."""
