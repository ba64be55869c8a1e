"""Out-of-core matrix multiplication: C = alpha·op(A)·op(B) + beta·C for what does not fit."""
