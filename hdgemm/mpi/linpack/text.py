"""HPL's lines of output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.mpi._timeline import HIDEABLE, PHASES, picture
from hdgemm.units import format_speed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hdgemm.mpi.linpack.benchmark import Result

_DOUBLE: Final = "=" * 80
_SINGLE: Final = "-" * 80


def result_lines(result: Result, dgemm: float | None = None) -> Iterator[str]:
    """Yield the lines of one run as HPL prints them, then where the time went.

    `dgemm` are flop/s of DGEMM on the same processes; None where they were not measured.
    """
    settings = result.settings
    p, q = settings.grid
    yield _DOUBLE
    yield "T/V                N    NB     P     Q               Time                 Gflops"
    yield _SINGLE
    yield (
        f"{settings.code:<8}{settings.n:>12}{settings.nb:>6}{p:>6}{q:>6}"
        f"{result.seconds:>19.2f}{result.gflops:>23.4e}"
    )
    yield _SINGLE
    verdict = "PASSED" if result.passed else "FAILED"
    formula = "||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)"
    yield f"{formula}= {result.residual:18.8e} ...... {verdict}"
    yield _SINGLE
    if result.steps is not None:
        yield f"HPL-MxP: factored in float32, {result.steps} steps of refinement to float64"
    for name in PHASES:
        seconds = result.phases[name]
        part = seconds / result.seconds
        yield f"{name:<10}{seconds:>9.2f} s {part:>7.1%}  {'#' * round(40 * min(1.0, part))}"
    if result.hidden_part is not None:
        each = ", ".join(f"{name} {result.hidden[name]:.2f} s" for name in HIDEABLE)
        yield f"beneath updates: {result.hidden_part:.1%} of panels, broadcasts and swaps ({each})"
    yield from picture(result.events)
    yield f"{'':10}p panel, b broadcast, s swap, U update, x solve, . idle; from left to right"
    if dgemm is not None:
        yield f"{result.gflops * 1e9 / dgemm:.1%} of DGEMM ({format_speed(dgemm / 1e9)})"
    yield result.energy.line(result.gflops)


def summary_lines(results: Iterable[Result]) -> Iterator[str]:
    """Yield HPL's last lines: how many runs passed and failed."""
    verdicts = [result.passed for result in results]
    yield _DOUBLE
    yield f"Finished {len(verdicts):6} tests with the following results:"
    yield f"         {sum(verdicts):6} tests completed and passed residual checks,"
    yield f"         {len(verdicts) - sum(verdicts):6} tests completed and failed residual checks."
    yield _DOUBLE
