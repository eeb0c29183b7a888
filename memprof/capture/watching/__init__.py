"""Training scripts that run as they are, with every program that they compile kept."""
