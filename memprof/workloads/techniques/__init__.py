"""Techniques by family. Each file has its own in `TECHNIQUES`, with what shows in a program that they took effect."""
