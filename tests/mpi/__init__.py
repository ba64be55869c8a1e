"""LINPACK by HPL's rules."""
