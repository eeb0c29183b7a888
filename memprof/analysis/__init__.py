"""Pure analysis: a capture in, facts out. No JAX, no rich, no Typer."""
