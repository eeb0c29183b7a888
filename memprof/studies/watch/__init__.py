"""Watch a whole job: the programs that a training script compiles, and the arrays on the device while it runs."""
