"""Sources of values other than XLA: each one turns a program of its framework into a record for `analysis`."""
