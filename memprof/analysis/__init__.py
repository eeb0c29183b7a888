"""Pure analysis: a capture in, facts out. No JAX, no rich, no Typer.

`pipeline.py` makes a report of a capture, `comparison.py` sets reports side by side. A room takes from those below it:

    scheduling/      what other orders of the operations would hold
    memory/ mesh/    what is held when, and what for; what several devices send each other and hold alike
    attribution/     what each value is for: phase, module, line of code, category
    hlo/             what XLA says: the program, its buffers, when they are live
    records/         captures and reports as records
"""
