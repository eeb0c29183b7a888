"""What a step can be compiled for: the catalogue of GPUs, exported target files, the local device, the CPU."""
