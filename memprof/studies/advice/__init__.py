"""What could be done about a peak: one idea per file in `rules`, each held against the timeline by `what_if`."""
