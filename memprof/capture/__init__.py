"""The only room that touches JAX's compiler and devices: targets, compiling, the capture file."""
