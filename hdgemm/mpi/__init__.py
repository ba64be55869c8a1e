"""Linear algebra over MPI: one LU engine in a cluster's memory."""
