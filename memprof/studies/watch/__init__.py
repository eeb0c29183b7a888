"""The question of a whole job: what a training script compiles, and what is on the device while it runs."""
