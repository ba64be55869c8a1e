"""Measurements: `python -m bench.NAME`; results as JSON under bench/results/."""
