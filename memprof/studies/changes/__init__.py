"""Changes that memprof makes to a step while it is traced, with one family of changes in each file."""
