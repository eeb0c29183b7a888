"""What concerns several devices: what they send each other, and what they hold alike."""
