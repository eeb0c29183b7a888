"""The processes that compile and run, what they are told, and what they hand back."""
