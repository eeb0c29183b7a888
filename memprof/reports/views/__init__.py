"""Views: each decides what a report says about one thing. `report`, `comparison` and `diff` put them together."""
