"""What `--format json` prints, as typed records."""
