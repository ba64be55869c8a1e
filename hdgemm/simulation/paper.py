"""The HDGEMM paper's own figures, to hold a simulation of its machine against."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.profiling.results import Reference

if TYPE_CHECKING:
    from collections.abc import Mapping

#: By the names of `references`: what the figure is, and the paper's value. Steps are ratios,
#: speeds in GFLOP/s, bandwidths and the CPU's rate as parts of the same alone.
FIGURES: Final[Mapping[str, tuple[str, float]]] = {
    "double-buffering": ("double buffering over initial (Figure 6)", 1.16),
    "data-reuse": ("data reuse over double buffering (Figure 6)", 1.18),
    "data-placement": ("data placement over data reuse (Figure 6)", 1.74),
    "one chip": ("one chip, GFLOP/s (section 4.2)", 408.0),
    "two chips": ("two chips, GFLOP/s (section 4.2)", 758.0),
    "two chips and CPU": ("two chips and CPUs, GFLOP/s (section 4.2)", 844.0),
    "store1": ("store1 with two chips (Figure 9)", 0.56),
    "load2": ("load2 with two chips (Figure 9)", 0.89),
    "load1": ("load1 with two chips (Figure 10)", 0.92),
    "store2": ("store2 with two chips (Figure 10)", 0.86),
    "CPU": ("the CPUs beside two chips (Figure 11)", 0.78),
}


def references(simulated: Mapping[str, float]) -> tuple[Reference, ...]:
    """Put the paper's figures beside simulated ones of the same names."""
    return tuple(
        Reference(label, value, simulated[name])
        for name, (label, value) in FIGURES.items()
        if name in simulated
    )
