"""Changes that memprof makes itself to a step while it is traced: one family of changes in each file."""
