"""Why a run ended out of memory, by its log."""
