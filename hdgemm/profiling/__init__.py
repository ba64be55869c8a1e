"""Which shared resource holds the machine back: contention runs, their verdict and their report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hdgemm.profiling.compare import compare
    from hdgemm.profiling.results import Profile
    from hdgemm.profiling.session import profile
    from hdgemm.profiling.simulated import simulate_profile

__all__ = ["Profile", "compare", "profile", "simulate_profile"]

_HOMES = {
    "Profile": "results",
    "compare": "compare",
    "profile": "session",
    "simulate_profile": "simulated",
}


def __getattr__(name: str) -> Any:
    """Import on first use: copy rates are asked for from below the runs that a profile makes."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
