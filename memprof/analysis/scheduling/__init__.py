"""What is live at the peak because of the order of the operations, and what other orders would hold."""
