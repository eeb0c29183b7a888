"""Techniques by family. Each file has its own in `TECHNIQUES`, with what shows in a program that they took effect.

In `MEANS` it may say how it follows what advice is after: see `intents.py`.
"""
