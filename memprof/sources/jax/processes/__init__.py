"""The processes that compile and run steps, their tasks, and their results."""
