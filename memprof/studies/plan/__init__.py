"""A memory budget in, a checkpoint policy out."""
