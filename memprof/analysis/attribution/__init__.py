"""Where each value comes from and what it is for: its phase, module, line of code, and category."""
