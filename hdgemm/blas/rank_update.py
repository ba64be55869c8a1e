"""Rank-k updates of a symmetric or Hermitian C, `syrk` and `herk`, and the run of rank-2k ones."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np

from hdgemm.blas._triangle_update import TriangleUpdate
from hdgemm.blas.blockwise import opened_result, opened_session, product_summary
from hdgemm.blas.products import result_place
from hdgemm.call.input_checks import check_reread
from hdgemm.call.keywords import Call, ReportKeywords, public_call
from hdgemm.call.plans import JointPlan
from hdgemm.call.prepared import Prepared
from hdgemm.call.recorder import Recorder
from hdgemm.errors import InputError
from hdgemm.matrices.operands import open_operand
from hdgemm.matrices.planned import planned_matrix
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.product.arguments import flag, trans_flags
from hdgemm.product.product import Product
from hdgemm.run.scaling import run_scaling
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from numpy.typing import NDArray

    from hdgemm.blas.products import Written
    from hdgemm.call.keywords import Element, Stored, Where
    from hdgemm.matrices.base import Operand
    from hdgemm.progress import Callbacks

#: Routines that multiply by conjugate transposes.
_HERMITIAN: Final = ("herk", "her2k")
#: The other `trans` of each routine.
_OTHER: Final = {"syrk": 1, "herk": 2, "syr2k": 1, "her2k": 2}
#: Bytes of A·A^T, and that size as a multiple of A, above which a call warns.
_LARGE_BYTES: Final = 1 << 30
_LARGE_FACTOR: Final = 8
#: Order of the blocks that are copied to the other triangle at once.
_MIRRORED: Final = 512


@overload
def syrk(
    alpha: Any,
    a: NDArray[Element],
    beta: Any = 0.0,
    c: NDArray[Element] | None = None,
    trans: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    symmetric: bool = False,
    out: None = None,
    **keywords: Unpack[ReportKeywords],
) -> NDArray[Element]: ...
@overload
def syrk(
    alpha: Any,
    a: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    symmetric: bool = False,
    out: Written | tuple[Written] | None = None,
    **keywords: Unpack[ReportKeywords],
) -> Written: ...
@overload
def syrk(
    alpha: Any,
    a: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    symmetric: bool = False,
    out: Where | tuple[Where],
    **keywords: Unpack[ReportKeywords],
) -> Stored: ...
@public_call(ReportKeywords)
def syrk(
    alpha: Any,
    a: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    symmetric: bool = False,
    out: Any = None,
    **keywords: Unpack[ReportKeywords],
) -> Any:
    """Compute one triangle of C := alpha·A·A^T + beta·C, argument for argument as SciPy's `dsyrk`.

    The work is half of a product's. Where the triangle of C fits `Options.host_memory` as a
    square, A is read once.

    Parameters
    ----------
    alpha, beta
        Numbers. beta = 0 never reads C; alpha = 0 never reads A.
    a
        n×k, as in `hdgemm.matmul`: an array, a stored matrix or a view, the location of a file.
    c
        n×n; only the triangle that `lower` names is read.
    trans
        0: A·A^T; 1: A^T·A, with A k×n.
    lower
        The triangle that is computed: the lower one, or the upper one (the default).
    overwrite_c
        C's memory may be used for the result.
    symmetric
        Copy the triangle to the other one at the end: all of C is written.
    out
        As in `hdgemm.dgemm`: an array, a stored matrix or view, the location of a file, or `c`.
    options
        As in `hdgemm.matmul`; blocks on the diagonal are computed on the host.
        ``tile=(mb, nb, kb)`` forces diagonal blocks of order nb at most, and kb columns of op(A)
        at a time for them.
    **keywords
        Keywords of every call, from `options` to `report`.

    Returns
    -------
    array
        As `hdgemm.matmul`. In a new array or file the other triangle is copied from `c`, zero
        without `c`; in an `out` that exists, and in `c` itself, it stays as it is.

    Raises
    ------
    InputError
        Arguments that do not fit together; before anything is written.
    DoesNotFitError
        When not even single elements fit the memory: `missing` in bytes.
    CancelledRunError
        When `cancel` was set; an unfinished C is never published.

    See Also
    --------
    herk : The Hermitian update.
    syr2k : The update of rank 2k.
    hdgemm.linalg.cov : Covariance of a tall matrix.

    References
    ----------
    J. Dongarra, J. Du Croz, S. Hammarling, I. Duff: A set of level 3 basic linear algebra
    subprograms, 1990.

    Examples
    --------
    >>> hdgemm.syrk(1.0, "A.npy", trans=1, lower=1, out="C.npy")
    """
    call = Call.of(**keywords)
    old = beta, c, overwrite_c
    return updated("syrk", (alpha, a, a), old, trans, lower, out, call, whole=symmetric)


@overload
def herk(
    alpha: Any,
    a: NDArray[Element],
    beta: Any = 0.0,
    c: NDArray[Element] | None = None,
    trans: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    symmetric: bool = False,
    out: None = None,
    **keywords: Unpack[ReportKeywords],
) -> NDArray[Element]: ...
@overload
def herk(
    alpha: Any,
    a: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    symmetric: bool = False,
    out: Written | tuple[Written] | None = None,
    **keywords: Unpack[ReportKeywords],
) -> Written: ...
@overload
def herk(
    alpha: Any,
    a: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    symmetric: bool = False,
    out: Where | tuple[Where],
    **keywords: Unpack[ReportKeywords],
) -> Stored: ...
@public_call(ReportKeywords)
def herk(
    alpha: Any,
    a: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans: int = False,
    lower: int = False,
    overwrite_c: int = False,
    *,
    symmetric: bool = False,
    out: Any = None,
    **keywords: Unpack[ReportKeywords],
) -> Any:
    """Compute one triangle of C := alpha·A·A^H + beta·C, argument for argument as SciPy's `zherk`.

    alpha and beta are real. ``trans=2`` computes A^H·A. All other arguments, results and errors
    are as in `syrk`, which computes the same for real matrices.

    Parameters
    ----------
    alpha, beta
        Real numbers.
    a
        n×k, as in `syrk`.
    c, lower, overwrite_c, symmetric, out
        As in `syrk`.
    trans
        0: A·A^H; 2: A^H·A, with A k×n.
    **keywords
        Keywords of every call, from `options` to `report`.

    Returns
    -------
    array
        As `syrk`.

    Raises
    ------
    InputError
        Arguments that do not fit together; before anything is written.
    DoesNotFitError
        When not even single elements fit the memory: `missing` in bytes.
    CancelledRunError
        When `cancel` was set; an unfinished C is never published.

    See Also
    --------
    syrk : The symmetric update.
    her2k : The update of rank 2k.

    References
    ----------
    J. Dongarra, J. Du Croz, S. Hammarling, I. Duff: A set of level 3 basic linear algebra
    subprograms, 1990.

    Examples
    --------
    >>> c = hdgemm.herk(1.0, "A.npy", trans=2, lower=1, out="C.npy")
    """
    call = Call.of(**keywords)
    old = beta, c, overwrite_c
    return updated("herk", (alpha, a, a), old, trans, lower, out, call, whole=symmetric)


def updated(
    name: str,
    factors: tuple[Any, Any, Any],
    old: tuple[Any, Any, int],
    trans: int,
    lower: int,
    out: Any,
    call: Call,
    *,
    whole: bool = False,
) -> Any:
    """Return C, updated by a routine of rank k or 2k with alpha, A and B; `old` has beta and C.

    With `whole`, both triangles are stored.
    """
    with _prepared(name, factors, old, trans, lower, out, call, whole=whole) as prepared:
        return prepared.run()


@contextmanager
def prepare(
    a: Any, out: Any, call: Call, *, trans: int = 0, lower: int = 0
) -> Iterator[Prepared[Any]]:
    """Yield ``syrk(1.0, a, trans=trans, lower=lower, out=out)``, planned."""
    with _prepared("syrk", (1.0, a, a), (0.0, None, 0), trans, lower, out, call) as prepared:
        yield prepared


@contextmanager
def _prepared(
    name: str,
    factors: tuple[Any, Any, Any],
    old: tuple[Any, Any, int],
    trans: int,
    lower: int,
    out: Any,
    call: Call,
    *,
    whole: bool = False,
) -> Iterator[Prepared[Any]]:
    """Yield an update, planned; takes the arguments of `updated`."""
    (alpha, a, b), (beta, c, overwrite_c) = factors, old
    below = flag(lower, "lower")
    out = result_place(out, c, a, b, overwrite_c=overwrite_c)
    product = Product.of(
        a, b, alpha=alpha, beta=beta, c=c, trans_a=int(bool(trans)), trans_b=int(not trans), out=out
    )
    product = _checked(name, product, trans)
    if product.c is not None:
        check_reread(product.c.matrix.dtype, product.dtype)
    _warn_of_size(name, product, trans)
    new = out is None or product.c is None

    def update_of(stored: Product) -> TriangleUpdate:
        return TriangleUpdate(_summands(name, stored), below, name in _HERMITIAN)

    with opened_session(call, name) as run:
        described = _described(product) if new else product
        plan = update_of(described).plan(run)

        def compute() -> Any:
            with opened_result(product, run) as stored:
                filled = _filled(stored, c, run.callbacks) if new else stored
                portions = update_of(filled).run(plan, run)
                if whole:
                    hermitian = name in _HERMITIAN
                    _mirror(stored.destination, run.callbacks, below=below, hermitian=hermitian)
                stored.destination.matrix.flush()
                portions.finish(product_summary(name, stored, run.options))
            return product.result()

        facts = product_summary(name, product, run.options)
        yield Prepared(JointPlan(facts, plan.parts), compute, run.session)


def _warn_of_size(name: str, product: Product, trans: int) -> None:
    """Warn of an A·A^T that is much larger than a tall A: A^T·A may be meant."""
    n, k = product.m, product.k
    size = n * n * product.dtype.itemsize
    if (
        not trans
        and n > k
        and size > max(_LARGE_BYTES, _LARGE_FACTOR * n * k * product.dtype.itemsize)
    ):
        warnings.warn(
            f"A is {n}×{k}, and A·A^T takes {format_size(size)}: pass trans={_OTHER[name]} for "
            f"the product of order {k}",
            RuntimeWarning,
            stacklevel=2,
        )


def _mirror(c: Operand, callbacks: Callbacks, *, below: bool, hermitian: bool) -> None:
    """Copy the triangle of C that is computed to the other one, by blocks."""
    matrix, recorder = StoredMatrix(c, writable=True), Recorder(callbacks, 0)
    starts = range(0, len(matrix), _MIRRORED)
    for first in starts:
        for second in starts[: first // _MIRRORED + 1]:
            recorder.check_cancel()
            rows, cols = slice(first, first + _MIRRORED), slice(second, second + _MIRRORED)
            source = (rows, cols) if below else (cols, rows)
            block = matrix[source].read()
            other = block.conj().T if hermitian else block.T
            if first == second:
                kept = np.tril(block) if below else np.triu(block)
                matrix[source] = kept + (np.triu(other, 1) if below else np.tril(other, -1))
            else:
                matrix[source[::-1]] = other


def _checked(name: str, product: Product, trans: int) -> Product:
    """Return the first summand, with the conjugation of a Hermitian update."""
    trans_flags(trans, "trans")
    if product.m != product.n:
        raise InputError(f"op(A) has {product.m} rows and op(B) {product.n}: {name} needs as many")
    if product.dtype.kind != "c":
        return product
    refused, other = (1, 2) if name in _HERMITIAN else (2, 1)
    if trans == refused:
        raise InputError(f"{name} of complex matrices takes trans 0 or {other}, got {trans}")
    if name not in _HERMITIAN:
        return product
    for scalar, value in (("alpha", product.alpha), ("beta", product.beta)):
        if value.imag != 0 and (scalar == "beta" or name == "herk"):
            raise InputError(f"{name} takes a real {scalar}, got {value}")
    if trans:
        return replace(product, a=replace(product.a, conj=True))
    return replace(product, b=replace(product.b, conj=True))


def _summands(name: str, product: Product) -> tuple[Product, ...]:
    """Return the product, and of rank 2k the one with A and B interchanged."""
    if not name.endswith("2k"):
        return (product,)
    flip = name in _HERMITIAN and product.dtype.kind == "c"
    a, b = product.b.transposed(), product.a.transposed()
    second = replace(
        product,
        a=replace(a, conj=a.conj != flip),
        b=replace(b, conj=b.conj != flip),
        alpha=product.alpha.conjugate() if flip else product.alpha,
        beta=1.0,
        old=product.c,
    )
    return product, second


def _described(product: Product) -> Product:
    """Return a product whose new C is described, as `_filled` returns it."""
    if product.c is None:
        product = product.stored_in(planned_matrix(product.target, product.shape, product.dtype))
    return replace(product, old=product.destination if product.old is not None else None)


def _filled(product: Product, c: Any, callbacks: Callbacks) -> Product:
    """Fill a new result with C, or with zeros; C is updated in it."""
    new, old = product.destination, None
    if c is not None:
        old = open_operand(c, what="c")
        run_scaling(1.0, old, new, product.dtype, cancel=callbacks.cancel)
    elif new.matrix.array is not None:
        new.matrix.array[...] = 0
    return replace(product, old=new if product.old is not None else None)
