"""XLA: what it is told, what it writes down about memory, and where that is kept."""
