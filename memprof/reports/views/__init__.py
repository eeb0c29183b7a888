"""Views: each decides what a report says about one thing. `summary` and `by` put them together."""
