"""What goes in and what comes out, as records: captures with what was measured, reports, and the words of both."""
