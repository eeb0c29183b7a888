"""The formats, one in each file; `memprof.reports.format` finds them."""
