"""Factorisations of matrices larger than the memory of all ranks: left-looking by slabs."""
