"""Descriptions of solves: systems, least squares, inverses."""

from __future__ import annotations

from typing import Final

from hdgemm.routines._parameters import ASSUME_A, LOWER, OVERWRITE_A, PIVOTING
from hdgemm.routines.description import OUT, Operand, Output, Parameter, Routine, always, extents

_SQUARE: Final = Operand("a", "n", "n")
_X: Final = Output(name="x", help="Where X goes.", shape=extents("n", "p"), option=OUT)

ROUTINES: Final = (
    Routine(
        name="solve",
        title="Solution X of A·X = B",
        summary="Solve A·X = B for a square matrix A.",
        function="hdgemm.linalg.solve:solve",
        prepare="hdgemm.linalg.solve:prepare",
        mpi="hdgemm.mpi.solve:solve",
        mpi_parameters=(PIVOTING,),
        operands=(_SQUARE, Operand("b", "n", "p")),
        parameters=(
            ASSUME_A,
            LOWER,
            Parameter(name="transposed", help="Solve with the transpose of A."),
            Parameter(
                name="refine",
                help="Factor in single precision, refine to double.",
                type=str,
                default=None,
                choices=("float32",),
            ),
            OVERWRITE_A,
        ),
        outputs=(_X,),
        durable=True,
        devices=True,
        scratch=extents("n", "n"),
        examples=(
            "hdgemm solve A.npy B.npy --out X.npy --host-memory 2GB",
            "hdgemm solve S.npy B.npy --out X.npy --assume-a pos --refine",
        ),
    ),
    Routine(
        name="lstsq",
        title="Least-squares solution of A·X = B",
        summary="Minimise the 2-norm of A·X − B, in one pass over a tall A.",
        function="hdgemm.linalg.lstsq:lstsq",
        prepare="hdgemm.linalg.lstsq:prepare",
        operands=(Operand("a", "m", "n"), Operand("b", "m", "p")),
        outputs=(
            _X,
            Output(
                name="rank",
                shape=extents(),
                dtype="int64",
                kind="value",
                value=lambda found: found[2],
            ),
        ),
        durable=True,
        devices=True,
        row_passes=always,
        examples=(
            "hdgemm lstsq T.npy Y.npy --out X.npy",
            "hdgemm lstsq T.npy Y.npy --out fit.npy --checkpoint --quiet",
        ),
    ),
    Routine(
        name="inv",
        title="Inverse of a matrix",
        summary="Invert a square matrix.",
        function="hdgemm.linalg.inverse:inv",
        prepare="hdgemm.linalg.inverse:prepare",
        operands=(_SQUARE,),
        parameters=(ASSUME_A, LOWER, OVERWRITE_A),
        outputs=(
            Output(name="x", help="Where the inverse goes.", shape=extents("n", "n"), option=OUT),
        ),
        durable=True,
        scratch=extents("n", "n"),
        examples=(
            "hdgemm inv A.npy --out X.npy --host-memory 2GB",
            "hdgemm inv S.npy --out X.npy --assume-a pos",
        ),
    ),
    Routine(
        name="det",
        title="Determinant of a matrix",
        summary="Compute a determinant, by LU factors; slogdet has those that overflow.",
        function="hdgemm.linalg.determinant:det",
        prepare="hdgemm.linalg.determinant:prepare_det",
        operands=(_SQUARE,),
        parameters=(OVERWRITE_A,),
        outputs=(Output(name="det", shape=extents(), kind="value"),),
        devices=True,
        scratch=extents("n", "n"),
        examples=("hdgemm det A.npy", "hdgemm det A.npy --quiet --host-memory 2GB"),
    ),
    Routine(
        name="slogdet",
        title="Sign and logarithm of the determinant",
        summary="Compute sign and logarithm of a determinant, by LU factors.",
        function="hdgemm.linalg.determinant:slogdet",
        prepare="hdgemm.linalg.determinant:prepare",
        operands=(_SQUARE,),
        outputs=(
            Output(name="sign", shape=extents(), kind="value", value=lambda found: found.sign),
            Output(
                name="logabsdet",
                shape=extents(),
                dtype="float64",
                kind="value",
                value=lambda found: found.logabsdet,
            ),
        ),
        devices=True,
        scratch=extents("n", "n"),
        examples=("hdgemm slogdet A.npy", "hdgemm slogdet A.npy --quiet --host-memory 2GB"),
    ),
    Routine(
        name="trsm",
        title="Solution X of op(A)·X = B with a triangular matrix A",
        summary="Solve op(A)·X = B for a triangular matrix A.",
        function="hdgemm.linalg.factored_solve:solve_triangular",
        prepare="hdgemm.linalg.factored_solve:prepare_triangular",
        aliases=("solve_triangular",),
        operands=(_SQUARE, Operand("b", "n", "p")),
        parameters=(
            LOWER,
            Parameter(
                name="trans",
                help="T solves with the transpose of A, C with its conjugate transpose.",
                type=str,
                default="N",
                choices=("N", "T", "C"),
            ),
            Parameter(name="unit_diagonal", help="Take ones for the diagonal, which is not read."),
        ),
        outputs=(_X,),
        durable=True,
        examples=(
            "hdgemm trsm L.npy B.npy --out X.npy --lower --host-memory 2GB",
            "hdgemm trsm L.npy B.npy --out Z.npy --lower --trans T --checkpoint",
        ),
    ),
)
