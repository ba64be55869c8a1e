"""Mechanism: runs a plan through the five stages; chooses nothing."""
