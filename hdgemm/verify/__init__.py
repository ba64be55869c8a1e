"""Freivalds check of a finished product.

The package imports this module for the public function `hdgemm.verify`: slow imports wait for the
first call.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import InputError
from hdgemm.unknown_keywords import refuses_unknown

if TYPE_CHECKING:
    import threading

    from hdgemm.matrices.base import Operand
    from hdgemm.verify.check import Verification

ROUNDS: Final = 30
#: Default memory of a check in bytes; more does not make it faster.
MEMORY: Final = 256_000_000


@refuses_unknown
def verify(
    a: Any,
    b: Any,
    c: Any,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    c_before: Any = None,
    trans_a: int = False,
    trans_b: int = False,
    rounds: int = ROUNDS,
    seed: int | None = None,
    memory: int | str = MEMORY,
    cancel: threading.Event | None = None,
) -> Verification:
    """Check that C = alpha·op(A)·op(B) + beta·C₀ by Freivalds' method.

    Parameters
    ----------
    a, b, c
        As in `hdgemm.dgemm`: arrays, memmaps or paths; each is read once, `b` twice where it
        holds NaN or Inf.
    alpha, beta, trans_a, trans_b
        As the product had them.
    c_before
        C₀, the C that beta multiplied; needed where beta is not zero.
    rounds
        Random vectors; an error above the stated bound is missed with probability 2^-rounds.
    seed
        Seed of the vectors; None draws new ones.
    memory
        Bytes that the check may take, as a number or a text such as ``"256MB"``. Where they do
        not hold all vectors at once, the matrices are read several times.
    cancel
        Set it to stop the check.

    Returns
    -------
    Verification
        Whether it passed, by what margin, and what such a check would miss.

    Raises
    ------
    InputError
        For operands that do not fit together.
    DoesNotFitError
        When `memory` does not hold one vector of each extent.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    Options : ``verify=True`` checks each product.

    References
    ----------
    R. Freivalds: Probabilistic machines can use less running time, 1977.

    Examples
    --------
    >>> check = hdgemm.verify("A.npy", "B.npy", "C.npy")
    >>> print(check)
    """
    from hdgemm.machine.limits import thread_limit
    from hdgemm.matrices.operands import open_operand
    from hdgemm.options import parse_size
    from hdgemm.product.arguments import trans_flags
    from hdgemm.product.product import check_product
    from hdgemm.verify.check import conclude
    from hdgemm.verify.freivalds import Check, CheckSettings

    settings = CheckSettings(rounds, seed, parse_size(memory, "memory"), cancel)
    with ExitStack() as stack, thread_limit():

        def opened(x: Any, what: str, code: int = 0) -> Operand:
            trans, conj = trans_flags(code, f"trans_{what}")
            operand = open_operand(x, what=what, trans=trans, conj=conj)
            stack.callback(operand.matrix.close)
            return operand

        left, right = opened(a, "a", trans_a), opened(b, "b", trans_b)
        result = opened(c, "c")
        old = None if c_before is None else opened(c_before, "c_before")
        if beta != 0 and old is None:
            raise InputError(f"beta = {beta}: pass c_before, the C that beta multiplied")
        product = check_product(alpha, left, right, beta, old)
        return conclude(Check(product, result, settings))
