"""Rank-k update of one triangle of C on a cluster: `hdgemm.cluster.syrk`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hdgemm.cluster.product import check_client, parse_bandwidth, run_product
from hdgemm.errors import InputError
from hdgemm.product.arguments import trans_flags
from hdgemm.product.product import Product
from hdgemm.progress import Watch
from hdgemm.progress_view import shows_progress
from hdgemm.run.session import check_options

if TYPE_CHECKING:
    import threading

    from hdgemm.durable.run import Checkpointing
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback
    from hdgemm.report import Report


@shows_progress
def syrk(
    alpha: Any,
    a: Any,
    beta: Any = 0.0,
    c: Any = None,
    trans: int = False,
    lower: int = False,
    *,
    client: Any,
    out: Any,
    options: Options | None = None,
    storage: float | str | None = None,
    progress: ProgressCallback | bool | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
    checkpoint: Checkpointing = True,
    restart: bool = False,
) -> Report:
    """Compute one triangle of C := alpha·A·A^T + beta·C on the workers of a Dask cluster.

    Each task computes one block of the triangle; see `hdgemm.cluster.multiply`. The triangle is cut
    by halving C; the squares that are left on the diagonal are computed whole, which adds 1/64 to
    the arithmetic.

    Parameters
    ----------
    alpha, beta, a, c, trans, lower
        As in `hdgemm.syrk`, in storage that every worker reaches.
    client, out, options, storage, progress, observer, cancel, checkpoint, restart
        As in `hdgemm.cluster.multiply`. In a new file the other triangle of C is zero; in a matrix
        that exists it stays as it is.

    Returns
    -------
    Report
        As `hdgemm.cluster.multiply`.

    Raises
    ------
    InputError
        Arguments that do not fit together, alpha = 0, an extent of zero, operands that other
        machines cannot reach, or a journal that another client holds.
    ClusterError
        When the scheduler is lost, or no worker can take part.
    CancelledRunError
        When `cancel` was set.
    """
    check_client(client)
    options, watch = check_options(options), Watch.of(progress, observer, cancel)
    bandwidth = parse_bandwidth(storage)
    trans_flags(trans, "trans")
    if out is None:
        raise InputError("syrk on a cluster needs out: where C goes, in storage of all workers")
    product = Product.of(
        a, a, alpha=alpha, beta=beta, c=c, trans_a=int(bool(trans)), trans_b=int(not trans),
        out=out,
    )  # fmt: skip
    if product.dtype.kind == "c" and trans == 2:
        raise InputError("syrk of complex matrices takes trans 0 or 1, got 2")
    if not product.reads_product:
        raise InputError("alpha = 0 or an extent of zero: nothing is multiplied; leave client out")
    return run_product(
        product, client, options, watch, bandwidth=bandwidth, checkpoint=checkpoint,
        restart=restart, lower=bool(lower),
    )  # fmt: skip
