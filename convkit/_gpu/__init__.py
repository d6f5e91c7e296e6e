"""Ways to compute a convolution on an NVIDIA GPU: CuPy's arrays and cuBLAS, cuDNN where it is there, own kernels."""
