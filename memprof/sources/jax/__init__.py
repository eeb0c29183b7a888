"""From a step of JAX to a capture: the only room that knows JAX's tracer and XLA's compiler."""
