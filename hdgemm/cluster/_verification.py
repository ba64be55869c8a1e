"""Freivalds check of a result that a cluster has computed, by the client and from its files.

The check reads A, B and C once. It finds any block that is not the product, whatever its worker has
seen, computed or stored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hdgemm.call.compute import with_verification
from hdgemm.matrices.triangles import symmetric
from hdgemm.product.product import check_product
from hdgemm.verify import MEMORY
from hdgemm.verify.freivalds import Check, CheckSettings

if TYPE_CHECKING:
    from hdgemm.matrices.base import Operand
    from hdgemm.options import Options
    from hdgemm.product.product import Product
    from hdgemm.progress import Callbacks
    from hdgemm.report import Report


def verify_product(
    report: Report, product: Product, options: Options, callbacks: Callbacks, *, lower: bool | None
) -> Report:
    """Check C, or the triangle of a symmetric C; return the report with the outcome.

    Raises
    ------
    HdgemmError
        When it is not the product.
    """
    c, old = product.destination, product.old
    if lower is not None:
        c = symmetric(c, lower=lower, hermitian=False)
        old = None if old is None else symmetric(old, lower=lower, hermitian=False)
    return _verified(report, replace(product, old=old), c, options, callbacks)


def verify_factor(
    report: Report,
    a: Operand,
    factor: Operand,
    options: Options,
    callbacks: Callbacks,
    *,
    lower: bool,
) -> Report:
    """Check that A = L·L^H, or U^H·U, of the triangle of A that was read; else as
    `verify_product`.
    """
    adjoint = replace(factor.transposed(), conj=True)
    left, right = (factor, adjoint) if lower else (adjoint, factor)
    product = check_product(1.0, left, right, 0.0, None)
    whole = symmetric(a, lower=lower, hermitian=True)
    return _verified(report, product, whole, options, callbacks)


def _verified(
    report: Report, product: Product, c: Operand, options: Options, callbacks: Callbacks
) -> Report:
    settings = CheckSettings(
        memory=min(options.host_bytes or MEMORY, MEMORY), cancel=callbacks.cancel
    )
    return with_verification(report, Check(product, c, settings), callbacks)
