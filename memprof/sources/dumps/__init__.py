"""Programs lowered or compiled elsewhere."""
