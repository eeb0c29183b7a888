"""Explain from its log why a run ran out of memory."""
