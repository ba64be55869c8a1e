"""Cholesky factorisation on a cluster: `hdgemm.cluster.cholesky`.

Left-looking slabs of columns, as on one machine. Of each slab one worker computes the diagonal
block; then all workers compute the rows below it, each block from the stored A and the stored
earlier columns of L.
"""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING, Any, Final

from hdgemm.call.keywords import Call, ClusterKeywords, public_call
from hdgemm.call.operands import check_square
from hdgemm.cluster._checkpoint import open_factor
from hdgemm.cluster._coordinator import Coordinator
from hdgemm.cluster._panel_job import PanelJob
from hdgemm.cluster._product import check_client, of_blocks, parse_bandwidth, quantum_of
from hdgemm.cluster._report import ClusterProgress, merged_report
from hdgemm.cluster._verification import verify_factor
from hdgemm.cluster.blocks import BlockPool, Costs
from hdgemm.cluster.connection import TOPIC_PREFIX
from hdgemm.cluster.references import Reference
from hdgemm.errors import InputError
from hdgemm.matrices.fingerprint import unchanged
from hdgemm.matrices.location import parse_location
from hdgemm.matrices.operands import open_operand
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.pipeline.tiles import Rect
from hdgemm.product.target import check_no_operand
from hdgemm.run.session import check_options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    import numpy as np

    from hdgemm.cluster._checkpoint import ClusterCheckpoint
    from hdgemm.matrices.base import Operand
    from hdgemm.options import Options
    from hdgemm.progress import Callbacks
    from hdgemm.report import Report

#: Slabs of a large matrix: a worker alone factors a diagonal block while the others wait.
_SLABS: Final = 48
#: Columns of a slab, at least and at most; the largest diagonal block takes 134 MB of float64.
_LEAST_WIDTH: Final = 512
_MOST_WIDTH: Final = 4096
#: Part of the bytes that a worker has for a block of C: beside it lie the slab's diagonal block
#: and the tiles of the update.
_BLOCKS_IN_MEMORY: Final = 2


@public_call(ClusterKeywords, checkpoint=True)
def cholesky(
    a: Any,
    lower: bool = False,
    check_finite: bool = True,
    *,
    client: Any,
    out: Any,
    storage: float | str | None = None,
    **keywords: Unpack[ClusterKeywords],
) -> Report:
    """Compute the Cholesky factor of a Hermitian positive definite matrix on a Dask cluster.

    Parameters
    ----------
    a, lower, check_finite
        As in `hdgemm.linalg.cholesky`, in storage that every worker reaches.
    out
        The location of a new file or array for the factor; zero in the other triangle.
    options
        As in `hdgemm.cluster.multiply`; ``tile=(mb, nb, kb)`` forces slabs of nb columns.
    client, storage
        As in `hdgemm.cluster.multiply`.
    **keywords
        Keywords of every call, from `options` to `restart`.

    Returns
    -------
    Report
        As `hdgemm.cluster.multiply`.

    Raises
    ------
    LinAlgError
        When A is not positive definite: `order` of the leading minor.
    InputError
        When A is not square or not finite, or for operands that other machines cannot reach.
    ClusterError
        When the scheduler is lost, or no worker can take part.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    hdgemm.linalg.cholesky : On one machine.
    hdgemm.mpi.cholesky : In the memory of all machines.

    References
    ----------
    E. D'Azevedo, J. Dongarra: The design and implementation of the parallel out-of-core
    ScaLAPACK LU, QR, and Cholesky factorization routines, 2000 (left-looking slabs).

    Examples
    --------
    >>> hdgemm.cluster.cholesky("/shared/S.npy", True, out="/shared/L.npy", client=client)
    """
    check_client(client)
    call = Call.of(**keywords)
    options, callbacks = check_options(call.options), call.callbacks
    bandwidth = parse_bandwidth(storage)
    matrix = open_operand(a, what="a")
    check_square(matrix.shape)
    Reference.of(matrix, "A")
    try:
        place = parse_location(out)
    except (InputError, TypeError) as error:
        raise InputError(
            f"out must be the location of a new file or array, got {type(out).__name__}"
        ) from error
    check_no_operand(place, a)
    dtype = matrix.matrix.dtype.newbyteorder("=")
    if not matrix.shape[0] or dtype.kind not in "fc":
        raise InputError(f"a {matrix.shape[0]}×{matrix.shape[0]} {dtype} has no factor")
    arguments = {"lower": bool(lower), "tile": options.tile and options.tile[1]}
    with open_factor(
        matrix, place, dtype, arguments, call.checkpoint, restart=call.restart
    ) as durable:
        n = matrix.shape[0]
        extents = {"m": n, "n": n, "k": n, "dtype": dtype.name}
        if durable.finished:
            return merged_report(extents, None, durable)
        with unchanged({"A": matrix}, durable.output.matrix):
            run = _Run(matrix, lower, durable, client, options, bandwidth)
            coordinator = run.factor(callbacks, check_finite)
            report = merged_report(extents, coordinator, durable)
            if options.checks_product:
                report = verify_factor(
                    report, matrix, durable.output, options, callbacks, lower=lower
                )
        durable.finish()
        return report


class _Run:
    """The slabs of one factorisation; for U, of the transpose of A."""

    def __init__(
        self,
        a: Operand,
        lower: bool,
        durable: ClusterCheckpoint,
        client: Any,
        options: Options,
        bandwidth: float | None,
    ) -> None:
        self._a = a if lower else a.transposed()
        self._factor = durable.output if lower else durable.output.transposed()
        self._durable, self._client, self._options = durable, client, options
        self._bandwidth = bandwidth
        self._n = a.shape[0]
        quantum = quantum_of(durable.output.matrix)
        self._quantum = quantum[::-1] if self._factor.trans else quantum

    def factor(self, callbacks: Callbacks, check_finite: bool) -> Coordinator:
        """Compute all blocks that are left."""
        durable = self._durable
        done = self._done()
        dtype = durable.output.matrix.dtype.newbyteorder("=")
        job = self._job(dtype, check_finite)
        total, before = self._n**3 / 3, 0.0
        with Coordinator(
            self._client,
            job,
            durable,
            callbacks,
            ClusterProgress(callbacks, durable.output.matrix.shape),
            itemsize=_BLOCKS_IN_MEMORY * dtype.itemsize,
            bandwidth=self._bandwidth,
        ) as coordinator:
            for region in self._regions():
                # Multiply-adds of an element: the update, and half a slab's width of the solve.
                depth = region.col + region.cols // 2
                work = 2.0 * depth * region.area / (2 if region.row == region.col else 1)
                pool = self._pool(region, done, dtype.itemsize)
                span = before / total, min(1.0, (before + work) / total)
                if pool.left:
                    flops = flops_per_multiply_add(dtype.name) * max(1, depth)
                    coordinator.run(pool, flops, span)
                before += work
        return coordinator

    def _done(self) -> list[Rect]:
        """Return the blocks that an earlier run has finished.

        Blocks in the columns of one that has changed since, and to the right of it, may have been
        computed from the changed one: they are computed again, too.
        """
        durable = self._durable
        done = durable.begin_blocks()
        first = min((self._turned(rect).col for rect in durable.damaged), default=self._n)
        durable.forget([rect for rect in done if self._turned(rect).col >= first])
        return [rect for rect in map(self._turned, done) if rect.col < first]

    def _job(self, dtype: np.dtype[Any], check_finite: bool) -> PanelJob:
        durable = self._durable
        return PanelJob(
            run=durable.run,
            topic=f"{TOPIC_PREFIX}{durable.run}-{secrets.token_hex(4)}",
            n=self._n,
            a=Reference.to_input(self._a, "A", durable.output.matrix),
            factor=durable.reference(self._factor),
            dtype=dtype,
            options=of_blocks(self._options),
            check_finite=check_finite,
        )

    def _regions(self) -> Iterator[Rect]:
        """Yield of each slab the diagonal block, and the rows below it."""
        width = self._width()
        for first in range(0, self._n, width):
            last = min(first + width, self._n)
            yield Rect(first, first, last - first, last - first)
            if last < self._n:
                yield Rect(last, first, self._n - last, last - first)

    def _width(self) -> int:
        """Return the columns of a slab, whole chunks and pages of the factor."""
        width = min(_MOST_WIDTH, max(_LEAST_WIDTH, -(-self._n // _SLABS)))
        if self._options.tile is not None:
            width = self._options.tile[1]
        step = math.lcm(*self._quantum)
        return min(self._n, -(-width // step) * step)

    def _pool(self, region: Rect, done: list[Rect], itemsize: int) -> BlockPool:
        # A diagonal block is one block; below it, blocks have all columns of the slab.
        rows = region.rows if region.row == region.col else self._quantum[0]
        return BlockPool(
            (region.rows, region.cols),
            Costs(max(1, region.col), itemsize, itemsize),
            bandwidth=self._bandwidth or 1e9,
            quantum=(rows, region.cols),
            done=done,
            region=[region],
        )

    def _turned(self, rect: Rect) -> Rect:
        if not self._factor.trans:
            return rect
        return Rect(rect.col, rect.row, rect.cols, rect.rows)
