"""Plans of products on a cluster before they run: `hdgemm.cluster.plan` and `plan_shape`."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from hdgemm.cluster._cluster_plan import ClusterPlan, plan_cluster
from hdgemm.cluster._job import Extents
from hdgemm.cluster._product import (
    check_client,
    costs_of,
    make_job,
    parse_bandwidth,
    product_of,
    quantum_of,
)
from hdgemm.cluster._workers import ask
from hdgemm.cluster.blocks import Costs
from hdgemm.cluster.virtual_time import VirtualWorker
from hdgemm.errors import InputError
from hdgemm.matrices.conversion import computed_in
from hdgemm.matrices.layout import check_read
from hdgemm.options import whole_number
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.run.session import check_options
from hdgemm.unknown_keywords import refuses_unknown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hdgemm.cluster._job import WorkerInfo
    from hdgemm.options import Options


@refuses_unknown
def plan(
    a: Any,
    b: Any,
    *,
    client: Any,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    c: Any = None,
    trans_a: int = False,
    trans_b: int = False,
    out: Any,
    dtype: Any = None,
    options: Options | None = None,
    storage: float | str | None = None,
) -> ClusterPlan:
    """Return what `hdgemm.cluster.multiply` would do for the same arguments; nothing is written.

    The workers that are there now describe themselves: they measure their rates where the product
    is worth it, and check that they reach A and B.

    Parameters
    ----------
    a, b, client, alpha, beta, c, trans_a, trans_b, out, dtype, options, storage
        As in `hdgemm.cluster.multiply`.

    Returns
    -------
    ClusterPlan
        Tasks, bytes and expected seconds; `print` shows a table.

    Raises
    ------
    InputError
        Arguments that do not fit together.
    ClusterError
        When no worker can take part.

    See Also
    --------
    multiply : Run it.

    Examples
    --------
    >>> print(hdgemm.cluster.plan("/shared/A.npy", "/shared/B.npy", out="C.npy", client=client))
    """
    check_client(client)
    factors, trans = (alpha, beta), (trans_a, trans_b)
    product = product_of((a, b, c), factors, trans, out=out, dtype=dtype).unwatched()
    if not product.reads_product:
        raise InputError("alpha = 0 or an extent of zero: nothing is multiplied")
    if product.c is not None:
        product = product.row_major()
    infos = ask(client, make_job(product, None, check_options(options))).values()
    m, n = product.shape
    itemsize = product.c_dtype.itemsize if product.c is None else product.c.matrix.dtype.itemsize
    return plan_cluster(
        (m, n, product.k),
        product.dtype.name,
        _workers(infos, itemsize),
        costs=costs_of(product),
        bandwidth=_bandwidth(infos, storage),
        memory=min(info.memory for info in infos),
        itemsize=itemsize,
        flops_per_element=product.flops // (m * n),
        quantum=(1, 1) if product.c is None else quantum_of(product.c.matrix),
    )


def plan_shape(
    m: int,
    n: int,
    k: int,
    *,
    client: Any,
    dtype: str = "float64",
    options: Options | None = None,
    storage: float | str | None = None,
) -> ClusterPlan:
    """Return the plan of C (m×n) := A (m×k) · B (k×n) on the workers that are there now.

    The matrices are row-major files that the workers need not have yet. Raises what `plan` raises.
    """
    check_client(client)
    m, n, k = (whole_number(extent, "each of m, n and k", bits=62) for extent in (m, n, k))
    stored = check_read(dtype, "the product")
    kind = computed_in(stored)
    extents = Extents(secrets.token_hex(8), m, n, k, kind.name, check_options(options))
    infos = ask(client, extents).values()
    return plan_cluster(
        (m, n, k),
        kind.name,
        _workers(infos, kind.itemsize),
        costs=Costs(k, stored.itemsize, stored.itemsize, row_bytes=n * stored.itemsize),
        bandwidth=_bandwidth(infos, storage),
        memory=min(info.memory for info in infos),
        itemsize=kind.itemsize,
        flops_per_element=k * flops_per_multiply_add(kind.name),
    )


def _workers(infos: Iterable[WorkerInfo], itemsize: int) -> list[VirtualWorker]:
    return [
        VirtualWorker(f"{number}", info.flop_rate, most_elements=info.most_elements(itemsize))
        for number, info in enumerate(infos)
    ]


def _bandwidth(infos: Iterable[WorkerInfo], storage: float | str | None) -> float:
    """Return the bytes/s of the storage: those given, or what the slowest worker measures."""
    given = parse_bandwidth(storage)
    return min(info.disk_read for info in infos) if given is None else given
