"""Which shared resource holds the machine back: contention runs, their verdict and their report."""

from hdgemm.profiling.compare import compare
from hdgemm.profiling.results import Profile
from hdgemm.profiling.session import profile
from hdgemm.simulation.profile import simulate_profile

__all__ = ["Profile", "compare", "profile", "simulate_profile"]
