"""Questions that take several compiles or reports: rows side by side, what fits, what is allowed, what to do."""
