"""Descriptions of products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.routines._parameters import LOWER
from hdgemm.routines.description import OUT, Operand, Output, Parameter, Routine

if TYPE_CHECKING:
    from hdgemm.routines.description import Extents, Given


def _square_of_a(extents: Extents, given: Given) -> tuple[int, int]:
    order = extents["n" if given.get("trans") else "m"]
    return order, order


ROUTINES: Final = (
    Routine(
        name="syrk",
        title="One triangle of A·A^T or A^T·A",
        summary="Compute one triangle of A·A^T or A^T·A: half of the work.",
        function="hdgemm.blas.rank_update:syrk",
        prepare="hdgemm.blas.rank_update:prepare",
        leading=(1.0,),
        operands=(Operand("a", "m", "n"),),
        parameters=(LOWER, Parameter(name="trans", help="A^T·A instead of A·A^T.")),
        outputs=(Output(name="c", help="Where C goes.", shape=_square_of_a, option=OUT),),
        examples=(
            "hdgemm syrk T.npy --out C.npy --trans",
            "hdgemm syrk A.npy --out C.npy --lower --dry-run",
        ),
    ),
)
