"""Pure analysis: a capture in, facts out. No JAX, no rich, no Typer.

`pipeline.py` turns a capture into a report, `comparison.py` compares reports. Each package imports only from those
below it:

    scheduling/      live bytes under other orders of the operations
    memory/ mesh/    live bytes over time and their purpose; communication and replication between devices
    attribution/     the purpose of each value: phase, module, source line, category
    hlo/             XLA's output: the program, its buffers, their live ranges
    records/         captures and reports as records
"""
