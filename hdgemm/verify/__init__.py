"""Freivalds checks of a finished product."""

from hdgemm.verify.check import MEMORY, Verification, conclude, prepare, verify, verify_operands

__all__ = ["MEMORY", "Verification", "conclude", "prepare", "verify", "verify_operands"]
