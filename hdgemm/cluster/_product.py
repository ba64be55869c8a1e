"""The public products of a cluster: `hdgemm.cluster.multiply` and `hdgemm.cluster.syrk`."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hdgemm.call.compute import compute
from hdgemm.call.keywords import Call, ClusterKeywords, public_call
from hdgemm.cluster._checkpoint import ClusterCheckpoint, open_checkpoint
from hdgemm.cluster._coordinator import Coordinator
from hdgemm.cluster._job import Job
from hdgemm.cluster._report import ClusterProgress, merged_report
from hdgemm.cluster._verification import verify_product
from hdgemm.cluster.blocks import BlockPool, Costs, triangle_region
from hdgemm.cluster.connection import TOPIC_PREFIX, dask_client
from hdgemm.cluster.references import Reference
from hdgemm.errors import InputError
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.fingerprint import unchanged
from hdgemm.matrices.transfer import ALIGNMENT
from hdgemm.options import parse_size
from hdgemm.product.arguments import check_beta, trans_flags
from hdgemm.product.product import Product
from hdgemm.run.session import check_options

if TYPE_CHECKING:
    from typing import Unpack

    from hdgemm.matrices.base import Matrix
    from hdgemm.options import Options
    from hdgemm.progress import Callbacks
    from hdgemm.report import Report


@public_call(ClusterKeywords, checkpoint=True)
def multiply(
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
    storage: float | str | None = None,
    **keywords: Unpack[ClusterKeywords],
) -> Report:
    """Compute C := alpha·op(A)·op(B) + beta·C on the workers of a Dask cluster.

    Each task computes one block of C with all devices of its worker, from storage to storage; no
    matrix data passes through Dask. Receipts of finished blocks go to a journal beside C, so that
    the same call goes on after the loss of workers, of the scheduler or of this process.

    Parameters
    ----------
    client
        A `distributed.Client`.
    a, b, c, alpha, beta, trans_a, trans_b
        As in `hdgemm.multiply`; matrices in files or stores that every worker reaches under the
        same name: paths, locations, and views of `hdgemm.open`.
    out
        Where C goes, in such storage: a path or location, or a matrix that is overwritten and not
        read.
    dtype
        As in `hdgemm.matmul`: of C and of the arithmetic; None: int64 for integers, else theirs.
    options
        For each worker: memory, devices, threads. None: Dask's limits of memory and threads. With
        `verify` True, this process checks the whole C before it is published.
    storage
        Bytes/s at which the storage serves all workers together, ``"20GB"``; None: as much as one
        worker measures on its own.
    observer
        As in `hdgemm.multiply`; events come when a block is finished.
    checkpoint
        True for a journal beside C, or its path.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    Report
        Of all workers together; in `split` and in the timeline each worker is a device.

    Raises
    ------
    InputError
        Arguments that do not fit together, operands that other machines cannot reach, or a journal
        that another client holds.
    ClusterError
        When the scheduler is lost, or no worker can take part.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    hdgemm.multiply : On one machine.
    plan : Tasks, bytes and expected seconds.

    Examples
    --------
    >>> client = distributed.Client("tcp://scheduler:8786")
    >>> report = hdgemm.cluster.multiply(
    ...     "/shared/A.npy", "/shared/B.npy", out="/shared/C.npy", client=client
    ... )
    """
    check_client(client)
    call = Call.of(**keywords)
    bandwidth = parse_bandwidth(storage)
    factors, trans = (alpha, beta), (trans_a, trans_b)
    product = product_of((a, b, c), factors, trans, out=out, dtype=dtype)
    if not product.reads_product:
        return compute(product, replace(call, checkpoint=False, restart=False))
    product = product.unwatched()
    return run_product(product, client, call, bandwidth=bandwidth)


@public_call(ClusterKeywords, checkpoint=True)
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
    storage: float | str | None = None,
    **keywords: Unpack[ClusterKeywords],
) -> Report:
    """Compute one triangle of C := alpha·A·A^T + beta·C on the workers of a Dask cluster.

    Each task computes one block of the triangle; see `hdgemm.cluster.multiply`. The triangle is cut
    by halving C; the squares that are left on the diagonal are computed whole, which adds 1/64 to
    the arithmetic.

    Parameters
    ----------
    alpha, beta, a, c, trans, lower
        As in `hdgemm.syrk`, in storage that every worker reaches.
    client, out, storage
        As in `hdgemm.cluster.multiply`. In a new file the other triangle of C is zero; in a matrix
        that exists it stays as it is.
    **keywords
        Keywords of every call, from `options` to `restart`.

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

    See Also
    --------
    hdgemm.syrk : On one machine.

    Examples
    --------
    >>> hdgemm.cluster.syrk(1.0, "/shared/A.npy", lower=1, out="/shared/C.npy", client=client)
    """
    check_client(client)
    call = Call.of(**keywords)
    bandwidth = parse_bandwidth(storage)
    trans_flags(trans, "trans")
    if out is None:
        raise InputError("syrk on a cluster needs out: where C goes, in storage of all workers")
    product = Product.of(
        a,
        a,
        alpha=alpha,
        beta=beta,
        c=c,
        trans_a=int(bool(trans)),
        trans_b=int(not trans),
        out=out,
    )
    if product.dtype.kind == "c" and trans == 2:
        raise InputError("syrk of complex matrices takes trans 0 or 1, got 2")
    if not product.reads_product:
        raise InputError("alpha = 0 or an extent of zero: nothing is multiplied; leave client out")
    return run_product(product, client, call, bandwidth=bandwidth, lower=bool(lower))


def product_of(
    operands: tuple[Any, Any, Any],
    factors: tuple[Any, Any],
    trans: tuple[int, int],
    *,
    out: Any,
    dtype: Any,
) -> Product:
    """Check arguments of `multiply`: A, B and the old C, alpha and beta, trans_a and trans_b."""
    (a, b, c), (alpha, beta), (trans_a, trans_b) = operands, factors, trans
    check_beta(beta, c)
    return Product.of(
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


def parse_bandwidth(storage: float | str | None) -> float | None:
    """Return the bytes/s of the storage; None where they are to be measured."""
    return None if storage is None else float(parse_size(storage, "storage"))


def run_product(
    product: Product,
    client: Any,
    call: Call,
    *,
    bandwidth: float | None,
    lower: bool | None = None,
) -> Report:
    """Compute a product, or the triangle of its C that `lower` names; see `multiply`."""
    options, callbacks = check_options(call.options), call.callbacks
    for letter, operand in product.inputs().items():
        Reference.of(operand, letter)  # refuses what other machines cannot reach
    extents = {"m": product.m, "n": product.n, "k": product.k, "dtype": product.dtype.name}
    triangle = None if lower is None else "lower" if lower else "upper"
    with open_checkpoint(
        product, call.checkpoint, restart=call.restart, triangle=triangle
    ) as durable:
        if durable.finished:
            return merged_report(extents, None, durable)
        with unchanged(product.inputs(), durable.output.matrix):
            coordinator = _run(product, durable, client, options, callbacks, bandwidth)
            report = merged_report(extents, coordinator, durable)
            if options.checks_product:
                stored = product.stored_in(durable.output)
                report = verify_product(report, stored, options, callbacks, lower=lower)
        durable.finish()
        return report


def check_client(client: Any) -> None:
    """Refuse objects that are no Dask client, and asynchronous clients."""
    if not isinstance(client, dask_client()):
        raise InputError(
            f"client must be a distributed.Client, got {type(client).__name__}: "
            "write client=distributed.Client('tcp://scheduler:8786')"
        )
    if client.asynchronous:
        raise InputError(
            "client is asynchronous, and the call waits for its answers: make it without "
            "asynchronous=True, and call asyncio.to_thread(...) in a coroutine"
        )


def _run(
    product: Product,
    durable: ClusterCheckpoint,
    client: Any,
    options: Options,
    callbacks: Callbacks,
    bandwidth: float | None,
) -> Coordinator:
    """Compute all blocks that are left."""
    done = durable.begin_blocks()
    stored = product.stored_in(durable.output).row_major()
    job = make_job(stored, durable, options)
    c, quantum = durable.output.matrix, quantum_of(durable.output.matrix)
    pool = BlockPool(
        c.shape,
        costs_of(stored),
        bandwidth=bandwidth or 1e9,
        quantum=quantum,
        done=done,
        region=None if job.lower is None else triangle_region(stored.m, quantum, lower=job.lower),
    )
    flops = stored.flops // (c.shape[0] * c.shape[1])
    with Coordinator(
        client,
        job,
        durable,
        callbacks,
        ClusterProgress(callbacks, c.shape),
        itemsize=c.dtype.itemsize,
        bandwidth=bandwidth,
    ) as coordinator:
        coordinator.run(pool, flops)
    return coordinator


def make_job(product: Product, durable: ClusterCheckpoint | None, options: Options) -> Job:
    """Describe a row-major product to the workers; without a durable run, for a plan only."""
    old, c = product.old, None if durable is None else durable.output.matrix
    run = durable.run if durable is not None else secrets.token_hex(8)
    return Job(
        run=run,
        topic=f"{TOPIC_PREFIX}{run}-{secrets.token_hex(4)}",
        a=Reference.to_input(product.a, "A", c),
        b=Reference.to_input(product.b, "B", c),
        c=None if durable is None else durable.reference(product.destination),
        old=None if old is None else Reference.to_input(old, "C", c),
        alpha=product.alpha,
        beta=product.beta,
        dtype=product.dtype,
        c_dtype=product.c_dtype,
        options=of_blocks(options),
        lower=None if durable is None else durable.stored_lower,
    )


def of_blocks(options: Options) -> Options:
    """Return the options of each block: the client checks the whole result itself."""
    return replace(options, verify=False) if options.checks_product else options


def quantum_of(c: Matrix) -> tuple[int, int]:
    """Return the rows and columns of which the extents of blocks must be multiples.

    Two workers then never write to one chunk of a store. In a file, where rows are whole pages,
    they never write to one page: a network file system may lose one of two such writes.
    """
    if c.chunk is not None:
        return c.chunk
    if isinstance(c, FileMatrix) and c.pitch % ALIGNMENT == c.offset % ALIGNMENT == 0:
        return 1, ALIGNMENT // c.dtype.itemsize
    return 1, 1


def costs_of(product: Product) -> Costs:
    """Return what reading a block costs a worker."""
    a, b = product.a.matrix.dtype.itemsize, product.b.matrix
    pitch = b.pitch if isinstance(b, FileMatrix) and not product.b.trans else 0
    return Costs(product.k, a, b.dtype.itemsize, row_bytes=pitch)
