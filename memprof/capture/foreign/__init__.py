"""Programs that others have lowered or compiled."""
