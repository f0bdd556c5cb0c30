"""Low-rank matrices: each as two factors, by singular values, plain or whitened by data."""
