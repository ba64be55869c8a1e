"""Tiles of a product one after the other, without a place for all of it: `stream`."""

from __future__ import annotations

from contextlib import nullcontext
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from hdgemm.blas.products import multiply
from hdgemm.call.keywords import RunKeywords, public_call
from hdgemm.errors import CancelledRunError
from hdgemm.machine.limits import thread_limit
from hdgemm.run.session import Session
from hdgemm.threads import (
    INTERRUPTIBLE,
    RUNNING,
    Origin,
    StopFlag,
    Worker,
    finish,
    wait_for_workers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias, Unpack

    from numpy.typing import NDArray

    _Tile: TypeAlias = tuple[slice, slice, NDArray[Any]]


class _Handover:
    """One tile at a time from the thread of a run to the thread that consumes them.

    The consumer may be interrupted anywhere: each of its steps is one operation of `SimpleQueue`,
    which an interrupt cannot divide.
    """

    def __init__(self) -> None:
        self._tiles: SimpleQueue[_Tile | None] = SimpleQueue()
        #: An element for each tile that the consumer is done with.
        self._used: SimpleQueue[None] = SimpleQueue()
        self._abandoned = False
        self.origin = Origin("stream")

    def put(self, rows: slice, cols: slice, tile: NDArray[Any]) -> None:
        """Hand a tile over; return when the consumer is done with it."""
        self._tiles.put((rows, cols, tile))
        self._used.get()
        if self._abandoned:
            raise CancelledRunError("the stream of tiles was closed; C is not finished")

    def end(self) -> None:
        """Say that no tile follows."""
        self._tiles.put(None)

    def abandon(self, _error: BaseException | None = None) -> None:
        """Say that no tile is wanted any more."""
        self._abandoned = True
        self._used.put(None)

    def tiles(self) -> Iterator[_Tile]:
        """Yield tiles until the run ends."""
        while (tile := self._next()) is not None:
            yield tile
            self.origin.check()
            self._used.put(None)

    def _next(self) -> _Tile | None:
        while True:
            try:
                return self._tiles.get(timeout=INTERRUPTIBLE)
            except Empty:
                continue


@public_call(RunKeywords)
def stream(
    a: Any,
    b: Any,
    *,
    trans_a: int = False,
    trans_b: int = False,
    dtype: Any = None,
    **keywords: Unpack[RunKeywords],
) -> Iterator[tuple[slice, slice, NDArray[Any]]]:
    """Yield the tiles of op(A)·op(B) while the product is computed; C is never stored.

    The run waits while a tile is used. To leave the loop, or to close the iterator, cancels the
    run.

    Parameters
    ----------
    a, b, trans_a, trans_b, dtype
        As in `hdgemm.multiply`.
    **keywords
        Keywords of every call, from `options` to `cancel`.

    Yields
    ------
    rows, cols : slice
        The place of the tile in C. Each element comes once, in the order of the plan.
    tile : array
        Read-only; its memory is used again when the next tile is asked for.

    Raises
    ------
    InputError
        As `hdgemm.multiply`, when the first tile is asked for; in the loop, for a call with the
        session of the stream.

    See Also
    --------
    topk : The largest entries of each row.
    matmul : The whole product.

    Examples
    --------
    >>> for rows, cols, tile in hdgemm.stream("A.npy", "B.npy"):
    ...     largest[rows] = np.maximum(largest[rows], tile.max(axis=1))
    """
    handover = _Handover()
    own, errors = StopFlag(), []
    session = keywords.get("session")
    if isinstance(session, Session):
        session.check_consumer()
    run: dict[str, Any] = {"cancel": own, **keywords}

    def compute() -> None:
        try:
            multiply(a, b, trans_a=trans_a, trans_b=trans_b, dtype=dtype, out=handover.put, **run)
        except BaseException as error:  # noqa: BLE001 - raised in the consumer's thread
            errors.append(error)
        finally:
            handover.end()

    worker = Worker(compute, "hdgemm-stream", within_run=False)

    def leave() -> None:
        own.set()
        handover.abandon()
        wait_for_workers([worker])

    try:
        # The end of the interpreter stops the run of a stream that is not at its end.
        RUNNING.add(handover.abandon)
        with thread_limit():
            worker.start()
        for tile in handover.tiles():
            with nullcontext() if session is None else session.consumed():
                yield tile
    finally:
        if handover.origin.here:
            finish(leave)
        RUNNING.discard(handover.abandon)
    if errors:
        raise errors[0]
