"""Contention profiles of this machine or a simulated one: which shared resource limits products."""

from hdgemm.profiling.compare import compare
from hdgemm.profiling.results import Profile
from hdgemm.profiling.session import profile
from hdgemm.profiling.simulated import simulate_profile

__all__ = ["Profile", "compare", "profile", "simulate_profile"]
