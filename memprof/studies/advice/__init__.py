"""What could be done about a peak: rules (`advise`), each held against the timeline by `what_if`."""
