"""Parameters that several routines have."""

from __future__ import annotations

from typing import Final

from hdgemm.routines.description import Parameter

LOWER: Final = Parameter(name="lower", help="The lower triangle instead of the upper.")
OVERWRITE_A: Final = Parameter(
    name="overwrite_a", help="The result may be stored over A.", python=True
)
PIVOTING: Final = Parameter(
    name="pivoting",
    help="How the pivots of a panel are chosen.",
    type=str,
    default="partial",
    choices=("partial", "tournament"),
)
ASSUME_A: Final = Parameter(
    name="assume_a",
    help="What is known of A.",
    type=str,
    default="gen",
    choices=("gen", "sym", "her", "pos", "upper triangular", "lower triangular"),
)
