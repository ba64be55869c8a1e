"""Passes over the rows of tall matrices on a Dask cluster: `hdgemm.cluster.row_passes`.

Each task reduces a piece of the rows, of a size that depends on the matrix only, by the local
engine (`hdgemm.linalg.rows`). Results are combined in a tree, in the order of the rows, and only
they move: triangles of n×n, not rows. Dask computes again what a lost worker had; what a worker is
late with is given to an idle one, too.
"""

from __future__ import annotations

import copy
import secrets
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hdgemm.cluster._product import check_client
from hdgemm.cluster._row_tasks import RowJob, RowsReference
from hdgemm.cluster._row_tree import RowTree
from hdgemm.cluster._workers import own_version
from hdgemm.cluster.connection import ClusterError, Scheduler
from hdgemm.cluster.references import Reference
from hdgemm.linalg.rows.pass_executor import passes_on
from hdgemm.matrices.base import Converted
from hdgemm.matrices.fingerprint import opened_by_name
from hdgemm.run.session import check_options
from hdgemm.unknown_keywords import refuses_unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hdgemm.call.recorder import Recorder
    from hdgemm.cluster._row_tasks import Receipt
    from hdgemm.linalg.planning.rows import RowPlan, RowShape
    from hdgemm.linalg.rows.reducer import Reducer
    from hdgemm.linalg.rows.source import TallRows
    from hdgemm.matrices.base import Matrix
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.options import Options

#: Pieces of a pass, where their bytes are within the limits: some for each of several workers, so
#: that a late or lost one costs little.
_PIECES: Final = 8
#: Bytes of a piece. Each one begins R anew, and is combined with its neighbour: for 400 columns,
#: this takes as long as 10,000 rows. The largest ones take about two seconds.
_LEAST_BYTES: Final = 128 << 20
_MOST_BYTES: Final = 1 << 30
#: Rows of a piece for each column, at least: combining two results costs as much as n/3 rows.
_ROWS_FOR_EACH_COLUMN: Final = 4
#: Pieces of a pass, at most: the scheduler holds three tasks for each.
_MOST_PIECES: Final = 4096
#: Blocks of a piece where a tile is forced.
_FORCED_BLOCKS: Final = 4


@refuses_unknown
@contextmanager
def row_passes(client: Any, *, options: Options | None = None) -> Iterator[None]:
    """Let the workers of a Dask cluster execute passes over the rows of stored matrices.

    Within the context, `hdgemm.linalg.svdvals`, `lstsq`, `ridge`, ``qr(mode="r")``, `cov`,
    `corrcoef`, `norm`, `svds` and the fits of `hdgemm.decomposition.PCA` reduce rows on workers.
    Calls are the same, and so are their results, except for rounding. Passes that store rows (U of
    `svd`, `PCA.transform`) run in this process.

    Parameters
    ----------
    client
        A `distributed.Client`. Its workers have the same version of hdgemm.
    options
        Of the workers: `host_memory` of each, shared by its threads; ``tile=(mb, nb, kb)`` forces
        blocks of mb rows. None for 0.6 of Dask's memory limit.

    Returns
    -------
    context manager
        Calls in its block run their passes on the workers.

    Raises
    ------
    InputError
        By a call in the context: its matrix lies in this process, or a worker sees another one.
    ClusterError
        By a call in the context: no worker is there, workers die again and again, or the scheduler
        is lost.
    CancelledRunError
        By a call whose `cancel` was set.

    Notes
    -----
    A piece of rows has the same size on each cluster, and results are combined in the order of the
    rows: the bits of a result depend on `options` only. A tree of triangles is TSQR as Demmel,
    Grigori, Hoemmen, Langou: Communication-optimal parallel and sequential QR and LU factorizations
    (2012) describe it.

    See Also
    --------
    hdgemm.linalg.svdvals : Singular values of a tall matrix.
    hdgemm.cluster.multiply : A product on a cluster.

    Examples
    --------
    >>> with hdgemm.cluster.row_passes(client):
    ...     s = hdgemm.linalg.svdvals("/shared/T.npy")
    ...     fit = hdgemm.linalg.ridge("/shared/T.npy", "/shared/y.npy", [0.1, 1.0])
    """
    check_client(client)
    with passes_on(_Cluster(client, check_options(options))):
        yield


class _Cluster:
    """Executes passes on the workers of a client."""

    def __init__(self, client: Any, options: Options) -> None:
        self._client, self._options = client, options

    def reduce(
        self, rows: TallRows, reducers: Sequence[Reducer], plan: RowPlan, recorder: Recorder
    ) -> RowPlan:
        """Reduce all rows; return the plan of the pieces."""
        job = self._job(rows, reducers)
        scheduler = Scheduler(self._client, "give the same command with a new scheduler")
        height = piece_rows(rows.shape, self._options)
        places = [
            (first, min(first + height, plan.m)) for first in range(0, max(1, plan.m), height)
        ]
        threads = self._client.nthreads()
        if not threads:
            raise ClusterError("no worker is there: start some, or wait for them")
        tree = RowTree(self._client, job, places)
        record = partial(_record, recorder, time.perf_counter())
        read = {"A": rows.a} | ({} if rows.b is None else {"B": rows.b})
        # A task opens them for each piece.
        with scheduler.connected(), opened_by_name({k: _stored(v) for k, v in read.items()}):
            try:
                found = tree.reduce(recorder.check_cancel, record)
                results = copy.deepcopy(found.reducers)
            finally:
                with suppress(Exception):  # what the client raises when it has lost the scheduler
                    tree.release()
        for mine, result in zip(reducers, results, strict=True):
            mine.restore(result.arrays)
        return plan._replace(
            rows=height,
            cores=min(len(places), sum(threads.values())),
            name=f"{plan.name} on {len(threads)} workers",
            expected_phase_seconds={},
        )

    def _job(self, rows: TallRows, reducers: Sequence[Reducer]) -> RowJob:
        names = ("dtype", "ones", "shift", "scale", "weights", "check_finite", "transposed")
        b = rows.b
        return RowJob(
            name=secrets.token_hex(8),
            version=own_version(),
            a=_referred(rows.a, "A"),
            b=None if b is None else _referred(b, "B", carry=True),
            rows={name: getattr(rows, name) for name in names},
            reducers=copy.deepcopy(list(reducers)),
            options=self._options,
        )


def piece_rows(shape: RowShape, options: Options) -> int:
    """Return the rows of a piece: the same on each cluster, so that bits do not depend on it."""
    if options.tile:
        return _FORCED_BLOCKS * options.tile[0]
    m, row_bytes = shape.m, max(1, shape.row_bytes)
    nbytes = min(max(_LEAST_BYTES, m * row_bytes // _PIECES), _MOST_BYTES)
    least = max(1, _ROWS_FOR_EACH_COLUMN * shape.n, -(-m // _MOST_PIECES))
    return max(least, nbytes // row_bytes)


def _record(recorder: Recorder, began: float, receipt: Receipt, number: int) -> None:
    """Record a piece's operations, the last of which has just ended."""
    shift = time.perf_counter() - began - max(event.end for event in receipt.events)
    for event in receipt.events:
        recorder.record(
            event.shifted(shift)._replace(device=receipt.worker, number=-1, unit=number),
            event.phase,
        )


def _referred(stored: StoredMatrix, what: str, *, carry: bool = False) -> RowsReference:
    """Refer to a matrix; `carry` the elements of one in memory to the workers."""
    operand = stored.operand
    dtype = operand.matrix.dtype.newbyteorder("=")
    if carry and operand.matrix.array is not None:
        return RowsReference(stored.read(), dtype)
    operand = replace(operand, matrix=_stored(stored))
    return RowsReference(Reference.to_input(operand, what, None), dtype)


def _stored(rows: StoredMatrix) -> Matrix:
    """Return a matrix as it is stored, before its elements are converted."""
    matrix = rows.operand.matrix
    return matrix.stored if isinstance(matrix, Converted) else matrix
