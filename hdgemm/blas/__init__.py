"""Level-3 BLAS for matrices of any size."""
