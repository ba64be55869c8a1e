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


def _largest(extents: Extents, given: Given) -> tuple[int, int]:
    return extents["m"], int(given["k"])


ROUTINES: Final = (
    Routine(
        name="topk",
        title="Largest entries of each row of A·op(B)",
        summary="Find the k largest entries of each row of A·op(B), which is never stored.",
        function="hdgemm.blas.topk:topk",
        prepare="hdgemm.blas.topk:prepare",
        operands=(Operand("a", "m", "p"), Operand("b", "p", "n", trans="trans_b")),
        parameters=(
            Parameter(name="k", help="Entries of each row.", type=int, default=10, least=1),
            Parameter(name="trans_b", help="Take the transpose of B: A·B^T of two sets of rows."),
        ),
        outputs=(
            Output(name="values", help="Where the entries go.", shape=_largest, option=OUT),
            Output(name="indices", help="Where their columns go.", shape=_largest, dtype="int64"),
        ),
        devices=True,
        examples=(
            "hdgemm topk E.npy E.npy --trans-b --out values.npy --indices columns.npy",
            "hdgemm topk Q.npy E.npy --trans-b --k 5 --out v.npy --indices i.npy",
        ),
    ),
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
            "hdgemm syrk T.npy --out G.npy --trans",
            "hdgemm syrk A.npy --out G.npy --lower --dry-run",
        ),
    ),
)
