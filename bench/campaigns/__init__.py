"""Attacks on the library and the service as commands; each prints counts and sets an exit status.

`python -m bench.campaigns.NAME`: 0 when nothing was wrong, 1 otherwise, 2 where it cannot run.
"""
