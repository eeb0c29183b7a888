"""What memprof costs, measured. Claims about speed live here, never in a test that a busy machine can fail."""
