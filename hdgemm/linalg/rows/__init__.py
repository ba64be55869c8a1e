"""Passes over blocks of rows of a tall matrix, and their checkpoint."""
