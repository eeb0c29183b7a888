"""The only package that uses JAX's compiler and devices: targets, compiles and the capture file."""
