"""Public training scripts under `memprof watch`, and what stands in for the data that they download."""
