"""Find what fits: the largest value of a field, or the cheapest techniques with which a batch fits."""
