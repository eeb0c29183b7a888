"""Studies that need several compiles or reports: comparisons, searches for a fit, checks of limits, and advice."""
