"""A compiled step on real devices: what it is fed, and what is measured."""
