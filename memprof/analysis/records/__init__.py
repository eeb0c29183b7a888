"""The records of inputs and outputs: captures with measurements, reports, and the terms of both."""
