"""Runs that survive being killed: a journal beside C, and what it takes to go on from it."""
