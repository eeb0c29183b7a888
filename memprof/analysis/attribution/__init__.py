"""The origin and purpose of each value: its phase, module, source line and category."""
