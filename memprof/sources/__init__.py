"""Sources of values other than XLA's programs: each turns a program of its framework into a record for `analysis`."""
