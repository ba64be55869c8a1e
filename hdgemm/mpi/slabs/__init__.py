"""LU of matrices larger than the memory of all ranks: left-looking over slabs of whole columns."""
