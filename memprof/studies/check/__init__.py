"""The gate for CI: a report against limits and against a baseline."""
