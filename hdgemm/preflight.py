"""The public preflight: plans of products before they run, and runs of given plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hdgemm.call.compute import compute
from hdgemm.call.keywords import Call, ExecuteKeywords, public_call
from hdgemm.errors import InputError, InputTypeError
from hdgemm.machine.limits import default_host_bytes, memory_limit
from hdgemm.matrices.conversion import computed_in, exact_terms
from hdgemm.matrices.layout import check_read
from hdgemm.options import Options, whole_number
from hdgemm.pipeline.plan import OperandSpec, Plan, Problem
from hdgemm.pipeline.plans import Plans
from hdgemm.product.arguments import check_beta, stored_dtype
from hdgemm.product.product import Product
from hdgemm.run.members import names_for, plan_members, preflight
from hdgemm.run.session import session_for
from hdgemm.unknown_keywords import refuses_unknown

if TYPE_CHECKING:
    from typing import Unpack

    import numpy as np

    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.plan import Path, Place
    from hdgemm.report import Report
    from hdgemm.run.session import Session


@refuses_unknown
def plan(
    a: Any,
    b: Any,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    c: Any = None,
    trans_a: int = False,
    trans_b: int = False,
    out: Any = None,
    dtype: Any = None,
    options: Options | None = None,
    session: Session | None = None,
) -> Plans:
    """Return the plans that `multiply` would execute for the same arguments, one for each device.

    Nothing is computed and nothing is written; `out` is checked as for a run. With several devices
    each draws tiles of C while the run lasts: a plan then gives its device's tile, slots and paths.
    `dtype` is as in `multiply`.

    Parameters
    ----------
    a, b, alpha, beta, c, trans_a, trans_b, out, dtype, options, session
        As in `multiply`.

    Returns
    -------
    Plans
        A list of `Plan` that prints as tables. Empty where A and B are not read: alpha = 0 or an
        extent of zero.

    Raises
    ------
    InputError
        Arguments that do not fit together.
    DoesNotFitError
        No plan fits the limits, with `requested`, `available` and `missing` in bytes.

    See Also
    --------
    plan_gemm : From the extents alone.
    hdgemm.linalg.plan : Plans of factorisations and solves.
    execute : Run a plan.

    References
    ----------
    HDGEMM: a Hybrid DGEMM library on a Heterogeneous Architecture with CPU and GPU (tiles,
    their order, the pipeline).

    Examples
    --------
    >>> print(hdgemm.plan("A.npy", "B.npy", out="C.npy"))
    """
    check_beta(beta, c)
    with memory_limit():  # an `out` in memory is allocated, though not touched
        product = Product.of(
            a,
            b,
            alpha=alpha,
            beta=beta,
            c=c,
            trans_a=trans_a,
            trans_b=trans_b,
            out=out,
            dtype=dtype,
            whole=True,
        )
        with session_for(session, options) as (opened, chosen):
            return Plans(preflight(product, chosen, opened))


@refuses_unknown
def plan_gemm(
    m: int, n: int, k: int, dtype: str = "float64", options: Options | None = None
) -> Plan:
    """Plan C (m×n) := A (m×k) · B (k×n), all row-major, from the extents alone.

    The matrices are taken to lie in memory where all three fit the host memory limit, else in
    files; `hdgemm.execute` plans again where they do not. With several devices this is the first
    one's plan.

    Parameters
    ----------
    m, n, k
        At least 1.
    dtype
        Of A and B as they are stored: float32, float64, complex64, complex128, or a type that is
        converted when it is loaded, such as int8. C then has the type that `matmul` gives it.
    options
        Memory, devices, tiles; see `Options`. None: the defaults.

    Returns
    -------
    Plan
        Tiles, bytes, memory and expected seconds; `print` shows a table.

    Raises
    ------
    InputError
        For extents below 1 or a dtype that BLAS does not have.
    DoesNotFitError
        With `requested`, `available` and `missing`, in bytes.

    See Also
    --------
    plan : For given operands.
    execute : Run the plan.

    References
    ----------
    HDGEMM: a Hybrid DGEMM library on a Heterogeneous Architecture with CPU and GPU (tiles,
    their order, the pipeline).

    Examples
    --------
    >>> print(hdgemm.plan_gemm(20_000, 20_000, 20_000))
    """
    return plan_shape(m, n, k, dtype=dtype, options=options)[0]


def plan_shape(
    m: int, n: int, k: int, *, dtype: str = "float64", options: Options | None = None
) -> Plans:
    """Do what `plan_gemm` does, and return the plan of each device."""
    m, n, k = (whole_number(extent, "each of m, n and k", bits=62) for extent in (m, n, k))
    stored = check_read(dtype, "the product")
    computed, kept = computed_in(stored), stored_dtype((stored, stored))
    if max(m * k, k * n, m * n) * max(computed.itemsize, stored.itemsize) >= 2**63:
        raise InputError(f"a {computed} matrix of m = {m}, n = {n}, k = {k} has 2^63 bytes or more")
    nbytes = (m * k + k * n) * stored.itemsize + m * n * kept.itemsize
    with session_for(None, options) as (session, chosen), session.running(chosen):
        in_memory = nbytes <= (chosen.host_bytes or default_host_bytes())

        def problem_for(device: Device) -> Problem:
            def spec(found: np.dtype[Any]) -> OperandSpec:
                resident = in_memory and device.spec.unified and found.name == computed.name
                path: Path = "resident" if resident else "staged"
                place: Place = "memory" if in_memory else "file"
                return OperandSpec(False, place, path, found.itemsize)

            source = spec(stored)
            terms = exact_terms(stored, stored) if device.spec.widens else 0
            specs = source, source, spec(kept)
            return Problem(m, n, k, computed.name, *specs, exact_terms=terms)

        members = plan_members(problem_for, names_for(chosen, 2 * m * n * k), chosen, session)
        return Plans(member.plan for member in members)


@public_call(ExecuteKeywords)
def execute(
    plan: Plan,
    a: Any,
    b: Any,
    c: Any,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    *,
    trans_a: int = False,
    trans_b: int = False,
    dtype: Any = None,
    **keywords: Unpack[ExecuteKeywords],
) -> Report:
    """Run a plan on operands: C := alpha·op(A)·op(B) + beta·C, updated in place.

    Parameters
    ----------
    plan
        From `plan_gemm` or `plan`. Where these operands are stored in another way than it was made
        for, the product is planned again with the same device, limits, strategy and tile; the
        report says which plan ran.
    a, b, alpha, beta, trans_a, trans_b
        As in `multiply`.
    c
        An array, a memmap, a stored matrix, or a location, which is created where beta = 0. A
        product A·B of integers is exact int64, as `multiply`'s.
    dtype
        As `plan` was given it.
    **keywords
        Keywords of every call, from `session` to `cancel`.

    Returns
    -------
    Report
        What was measured.

    Raises
    ------
    InputError
        Arguments that do not fit together, or another shape than the plan's.
    DoesNotFitError
        When operands are stored in another way, and no plan fits the limits.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    plan, plan_gemm : Make a plan.

    Examples
    --------
    >>> plan = hdgemm.plan_gemm(300, 300, 300)
    >>> report = hdgemm.execute(plan, "A.npy", "B.npy", "C.npy")
    """
    if not isinstance(plan, Plan):
        raise InputTypeError(
            "plan must be a plan of hdgemm.plan_gemm, or one of hdgemm.plan, which are plan[0] and "
            f"so on, got {type(plan).__name__}"
        )
    product = Product.of(
        a,
        b,
        alpha=alpha,
        beta=beta,
        c=None if beta == 0 else c,
        trans_a=trans_a,
        trans_b=trans_b,
        out=c,
        dtype=dtype,
        whole=True,
    )
    options = Options(
        devices=plan.device.name,
        strategy=plan.strategy,
        tile=plan.tile,
        host_memory=plan.host_limit or None,
        device_memory=None if plan.device.unified else plan.device_limit,
    )
    return compute(product, Call.of(options=options, **keywords), plan=plan)
