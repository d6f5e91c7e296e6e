"""Ways to compute a convolution on the CPU."""
