"""Find a checkpoint policy for a memory budget."""
