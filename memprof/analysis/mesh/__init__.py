"""Programs on several devices: their communication, and the data that they replicate."""
