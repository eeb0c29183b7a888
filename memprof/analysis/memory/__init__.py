"""The contents of the device's memory over time: their purpose, their sums, and the check against the compiler."""
