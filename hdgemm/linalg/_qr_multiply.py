"""Products with the Q of a QR factorisation, which is not formed: `qr_multiply`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from hdgemm.call.keywords import Call, DurableKeywords, public_call
from hdgemm.call.operands import open_columns, open_matrix
from hdgemm.call.prepared import Prepared
from hdgemm.call.run import open_run
from hdgemm.errors import InputError
from hdgemm.linalg._checkpoint import Command
from hdgemm.linalg._q_product import QProduct
from hdgemm.linalg._qr_factorisation import QrFactorisation
from hdgemm.product.target import check_no_operand, is_location

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Place, Source, Stored
    from hdgemm.matrices.stored import StoredMatrix


@overload
def qr_multiply(
    a: Source,
    c: Any,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
    *,
    out: None = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def qr_multiply(
    a: Source,
    c: Any,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
    *,
    out: tuple[Place, Place],
    **keywords: Unpack[DurableKeywords],
) -> tuple[Stored, Stored]: ...
@overload
def qr_multiply(
    a: Any,
    c: Any,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
    *,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[Any, Any]: ...
@public_call(DurableKeywords, callers_arrays=True)
def qr_multiply(
    a: Any,
    c: Any,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,  # noqa: ARG001 - SciPy's argument, a permission
    *,
    out: Any = None,
    **keywords: Unpack[DurableKeywords],
) -> tuple[Any, Any]:
    """Return ``(c·Q, R)`` or ``(Q·c, R)`` for the QR factorisation of an m×n matrix of any size.

    The reflectors go to a scratch file, which needs as much space as A, in the folder of the
    result or of A.

    Parameters
    ----------
    a
        A matrix as in `hdgemm.matmul`.
    c
        A vector, or a matrix as in `hdgemm.matmul`: p×m for "right"; k×p or m×p for "left", where
        k = min(m, n) and rows of zeros are added to k.
    mode
        ``"right"``: c·Q with the first k columns of Q. ``"left"``: Q·c, which has m rows.
    pivoting
        False.
    conjugate
        Take the complex conjugate of Q.
    overwrite_a
        The reflectors may be stored in place of `a`.
    overwrite_c
        Has no effect.
    out
        A pair (product, R) as in `qr`; None for new arrays.
    checkpoint
        As in `cholesky`; the product and R must be files. The reflectors lie beside the product
        until the end.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    cq, r : arrays
        The product, a vector where `c` is one, and R (k×n).

    Raises
    ------
    InputError
        When shapes do not fit together, or elements are not finite.
    DoesNotFitError
        When one slab does not fit: `missing` in bytes.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    qr : Q and R.

    References
    ----------
    E. D'Azevedo, J. Dongarra: The design and implementation of the parallel out-of-core
    ScaLAPACK LU, QR, and Cholesky factorization routines, 2000 (left-looking slabs).

    Examples
    --------
    >>> qc, r = hdgemm.linalg.qr_multiply("T.npy", "Y.npy", mode="left", out=("QC.npy", "R.npy"))
    """
    call = Call.of(**keywords)
    with prepare(
        a, c, out, call, mode=mode, pivoting=pivoting, conjugate=conjugate, overwrite_a=overwrite_a
    ) as prepared:
        return prepared.run()


@contextmanager
def prepare(
    a: Any,
    c: Any,
    out: Any,
    call: Call,
    *,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
) -> Iterator[Prepared[tuple[Any, Any]]]:
    """Yield one factorisation with a product by its Q, planned."""
    if mode not in ("left", "right"):
        raise InputError(f"mode must be 'left' or 'right', got {mode!r}")
    if pivoting:
        raise InputError("pivoting=True is not offered: it chooses among all columns at each step")
    if out is not None and not (isinstance(out, tuple | list) and len(out) == 2):
        raise InputError("out must be a pair (product, r)")
    product_out, r_out = out or (None, None)
    if call.checkpoint is not False and not is_location(r_out):
        raise InputError("checkpoint needs results in files: give locations of both in out")
    left = mode == "left"
    factor, vector = open_columns(c, "c")
    with open_matrix(a) as source, factor, open_run(call) as how:
        if vector and not left:
            factor = factor.T
        _check_shapes(source, factor, left=left)
        dtype = np.result_type(source.dtype, factor.dtype)
        qr = QrFactorisation(
            a, source, how, dtype=dtype, overwrite_a=overwrite_a and source.dtype == dtype
        )
        command = Command(
            "qr_multiply",
            {"mode": mode, "conjugate": bool(conjugate)},
            call.checkpoint,
            call.restart,
            transposed=not left,
            matrices={"c": factor},
        )
        shape = (source.shape[0], factor.shape[1]) if left else (factor.shape[0], qr.k)
        for each in (product_out, r_out):
            check_no_operand(each, factor)
        output = qr.output(product_out, shape, command=command)
        r_output = qr.output_r(r_out, qr.k)
        conjugates = bool(conjugate) == left
        prepared = QProduct(qr, output, r_output, factor, left, conjugates).prepared()

        def run() -> tuple[Any, Any]:
            product, r = prepared.compute()
            return (np.ravel(product) if vector else product), r

        yield Prepared(prepared.plan, run, prepared.session)


def _check_shapes(source: StoredMatrix, factor: StoredMatrix, *, left: bool) -> None:
    m, n = source.shape
    fits = factor.shape[0] in (m, min(m, n)) if left else factor.shape[1] == m
    if not fits:
        order = "Q·c" if left else "c·Q"
        wanted = f"{m} or {min(m, n)} rows" if left else f"{m} columns"
        raise InputError(
            f"c has shape {factor.shape}, a {m}×{n}: they do not fit for {order}, which needs a c "
            f"with {wanted}"
        )
