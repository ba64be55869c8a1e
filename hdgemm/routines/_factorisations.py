"""Descriptions of factorisations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.routines._parameters import LOWER, OVERWRITE_A, PIVOTING
from hdgemm.routines.description import OUT, Operand, Output, Parameter, Routine, extents

if TYPE_CHECKING:
    from hdgemm.routines.description import Extents, Given

_A: Final = (Operand("a", "m", "n"),)


def _mode(given: Given) -> str:
    """Return the mode of QR; "full" is the function's default."""
    return str(given.get("mode", "full"))


def _rows_of_r(extents: Extents, given: Given) -> int:
    return extents["m" if _mode(given) == "full" else "k"]


ROUTINES: Final = (
    Routine(
        name="cholesky",
        title="Cholesky factor of a positive definite matrix",
        summary="Factor a Hermitian positive definite matrix: A = U^H·U, or L·L^H.",
        function="hdgemm.linalg.cholesky:cholesky",
        prepare="hdgemm.linalg.cholesky:prepare",
        mpi="hdgemm.mpi.cholesky:cholesky",
        aliases=("cho_factor",),
        operands=(Operand("a", "n", "n"),),
        parameters=(LOWER, OVERWRITE_A),
        outputs=(
            Output(
                name="factor",
                help="Where the factor goes.",
                shape=extents("n", "n"),
                option=OUT,
                factors="cholesky",
            ),
        ),
        durable=True,
        devices=True,
        in_place=True,
        examples=(
            "hdgemm cholesky S.npy --out L.npy --lower --host-memory 2GB",
            "hdgemm cholesky S.npy --out U.npy --checkpoint",
        ),
    ),
    Routine(
        name="lu",
        title="LU factors with partial pivoting",
        summary="Factor a matrix with partial pivoting: P·A = L·U.",
        function="hdgemm.linalg.lu:lu_factor",
        prepare="hdgemm.linalg.lu:prepare",
        mpi="hdgemm.mpi.lu:lu_factor",
        aliases=("lu_factor",),
        operands=_A,
        parameters=(PIVOTING, OVERWRITE_A),
        outputs=(
            Output(
                name="lu",
                help="Where the factors go; the pivots go to OUT.piv.npy.",
                shape=extents("m", "n"),
                option=OUT,
                factors="lu",
            ),
            Output(name="piv", shape=extents("k"), dtype="int64", kind="beside"),
        ),
        durable=True,
        devices=True,
        in_place=True,
        examples=(
            "hdgemm lu A.npy --out LU.npy --host-memory 2GB",
            "hdgemm lu A.npy --out LU.npy --checkpoint --gantt lu.png",
        ),
    ),
    Routine(
        name="qr",
        title="QR factorisation: R, or the reflectors",
        summary="Factor a matrix by Householder reflectors: A = Q·R.",
        function="hdgemm.linalg.qr:qr",
        prepare="hdgemm.linalg.qr:prepare",
        operands=_A,
        parameters=(
            Parameter(
                name="mode",
                help="R alone; Q, too; or the reflectors, with OUT.tau.npy.",
                type=str,
                default="r",
                choices=("r", "raw", "economic", "full"),
            ),
            OVERWRITE_A,
        ),
        outputs=(
            Output(
                name="q",
                help="Where Q goes; without --mode, the economic one.",
                shape=lambda sizes, given: (sizes["m"], _rows_of_r(sizes, given)),
                when=lambda given: _mode(given) in {"economic", "full"},
                implies={"mode": "economic"},
            ),
            Output(
                name="r",
                help="Where R goes; for raw, the reflectors.",
                shape=lambda sizes, given: (_rows_of_r(sizes, given), sizes["n"]),
                option=OUT,
                when=lambda given: _mode(given) != "raw",
            ),
            Output(
                name="qr",
                shape=extents("m", "n"),
                option=OUT,
                factors="qr",
                when=lambda given: _mode(given) == "raw",
            ),
            Output(
                name="tau",
                shape=extents("k"),
                kind="beside",
                when=lambda given: _mode(given) == "raw",
            ),
        ),
        durable=True,
        devices=True,
        row_passes=lambda given: _mode(given) == "r",
        examples=(
            "hdgemm qr T.npy --out R.npy",
            "hdgemm qr T.npy --out QR.npy --mode raw --host-memory 2GB",
        ),
    ),
)
