"""XLA: its options, its memory plans, and the cache of these plans."""
