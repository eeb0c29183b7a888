"""Finding the largest value of a field with which a step still fits."""
