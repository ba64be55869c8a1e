"""Norms of a matrix in one pass: `norm`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.call.input_checks import reads_unchanged
from hdgemm.call.keywords import Call, ReportKeywords, public_call
from hdgemm.call.operands import open_matrix
from hdgemm.call.plans import JointPlan, facts_of
from hdgemm.call.prepared import Prepared
from hdgemm.call.run import folder_of, open_run
from hdgemm.errors import InputError
from hdgemm.linalg.planning.passes import rows_for
from hdgemm.linalg.rows.passes import Passes
from hdgemm.linalg.rows.source import TallRows
from hdgemm.linalg.rows.sums import Norm
from hdgemm.linalg.svd import prepare_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Unpack

    from hdgemm.linalg.rows.sums import NormName

#: Name of the sum, and whether the smallest one counts.
_SUMS: Final[Mapping[Any, tuple[NormName, bool]]] = {
    None: ("fro", False),
    "fro": ("fro", False),
    "max": ("max", False),
    1: ("columns", False),
    -1: ("columns", True),
    np.inf: ("rows", False),
    -np.inf: ("rows", True),
}
#: Norms of the singular values.
_SPECTRAL: Final = (2, -2, "nuc")
#: Numbers as texts, of a command line.
_NUMBERS: Final[Mapping[str, float]] = {
    **{str(number): number for number in (1, -1, 2, -2)},
    "inf": np.inf,
    "-inf": -np.inf,
}
#: The same sums of the transpose.
_TRANSPOSED: Final[Mapping[NormName, NormName]] = {
    "columns": "rows",
    "rows": "columns",
    "fro": "fro",
    "max": "max",
}


@public_call(ReportKeywords, callers_arrays=True)
def norm(
    a: Any,
    ord: Any = None,  # noqa: A002 - SciPy's name
    axis: None = None,
    keepdims: bool = False,
    check_finite: bool = True,
    **keywords: Unpack[ReportKeywords],
) -> float:
    """Return a norm of a matrix, as `scipy.linalg.norm`; A is read once.

    Parameters
    ----------
    a
        A matrix as in `hdgemm.matmul`: an array, a stored matrix or a view, or the location of a
        file.
    ord
        None or "fro": the Frobenius norm. 1, -1: the largest and the smallest sum of the absolute
        values of a column; `numpy.inf`, ``-numpy.inf``: of a row. "max": the largest absolute
        value. 2, -2, "nuc": the largest and the smallest singular value, and their sum, for which
        a triangle of order min(m, n) must fit the memory as for `svdvals`. Numbers may be texts.
    axis, keepdims
        None and False.
    check_finite
        Raise `InputError` at the first NaN or Inf.
    **keywords
        Keywords of every call, from `options` to `report`.

    Returns
    -------
    float
        0 for an empty matrix.

    Raises
    ------
    InputError
        When A is not finite, `row` and `col`, or for another `ord`.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    svdvals : Singular values.
    cond : Condition number.

    References
    ----------
    N. Higham: Accuracy and Stability of Numerical Algorithms, 2002, chapter 6 (norms).

    Examples
    --------
    >>> hdgemm.linalg.norm("A.npy", 1)
    """
    if axis is not None or keepdims:
        raise InputError("norm takes the whole matrix: leave axis and keepdims out")
    with prepare(a, None, Call.of(**keywords), ord=ord, check_finite=check_finite) as prepared:
        return prepared.run()


@contextmanager
def prepare(
    a: Any,
    out: None,
    call: Call,
    *,
    ord: Any = None,  # noqa: A002 - SciPy's name
    check_finite: bool = True,
) -> Iterator[Prepared[float]]:
    """Yield a norm, planned; `out` is None."""
    ord = _NUMBERS[ord] if isinstance(ord, str) and ord in _NUMBERS else ord  # noqa: A001
    if _is_one_of(ord, _SPECTRAL):
        with prepare_values(a, out, call, check_finite=check_finite) as values:
            yield Prepared(values.plan, lambda: _spectral(values.compute(), ord), values.session)
        return
    if not _is_one_of(ord, tuple(_SUMS)):
        raise InputError(
            f"ord must be None, 'fro', 'max', 'nuc', 1, -1, 2, -2, inf or -inf, got {ord!r}"
        )
    name, smallest = _SUMS[ord]
    with open_matrix(a) as source, open_run(call) as run:
        # Lines that are contiguous are the rows of the pass.
        by_columns = source.order == "F"
        view = source.T if by_columns else source
        rows = TallRows(
            view, source.dtype.newbyteorder("="), check_finite=check_finite, transposed=by_columns
        )
        reducer = Norm(_TRANSPOSED[name] if by_columns else name, view.shape[1], smallest=smallest)
        plan = rows_for(rows.shape, [reducer.work(rows.shape)], folder_of(source), run)
        facts = facts_of("norm", source.shape, rows.dtype.name, run.options)

        def compute() -> float:
            passes = Passes(run, plan.flops)
            if source.size:
                with reads_unchanged({"A": source}):
                    passes.reduce(rows, [reducer], plan)
            passes.finish(facts)
            return reducer.value if source.size else 0.0

        yield Prepared(JointPlan(facts, (plan,)), compute, run.session)


def _is_one_of(ord: Any, known: tuple[Any, ...]) -> bool:  # noqa: A002
    """Say whether a norm is known; arrays and other values without a hash are not."""
    try:
        return ord in known
    except (TypeError, ValueError):
        return False


def _spectral(s: Any, ord: Any) -> float:  # noqa: A002
    if not len(s):
        return 0.0
    return float(s.sum() if ord == "nuc" else s[0] if ord == 2 else s[-1])
