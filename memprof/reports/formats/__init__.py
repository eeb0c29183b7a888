"""The formats: one file each, found by `memprof.reports.registry`."""
