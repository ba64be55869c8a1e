"""Tiles of a product one after the other, without a place for all of it: `stream`."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from hdgemm.blas.products import multiply
from hdgemm.call.keywords import RunKeywords, public_call
from hdgemm.errors import CancelledRunError
from hdgemm.run.session import Session
from hdgemm.threads import RUNNING, Origin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from numpy.typing import NDArray


class _Handover:
    """One tile at a time from the thread of a run to the thread that consumes them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tile: tuple[slice, slice, NDArray[Any]] | None = None
        self._ended = False
        self._abandoned = False
        self.origin = Origin("stream")

    def put(self, rows: slice, cols: slice, tile: NDArray[Any]) -> None:
        """Hand a tile over; return when the consumer is done with it."""
        with self._changed:
            self._tile = rows, cols, tile
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._tile is None or self._abandoned)
            if self._abandoned:
                raise CancelledRunError("the stream of tiles was closed; C is not finished")

    def end(self) -> None:
        """Say that no tile follows."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def abandon(self, _error: BaseException | None = None) -> None:
        """Say that no tile is wanted any more."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def tiles(self) -> Iterator[tuple[slice, slice, NDArray[Any]]]:
        """Yield tiles until the run ends."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._tile is not None or self._ended)
                tile = self._tile
            if tile is None:
                return
            yield tile
            self.origin.check()
            with self._changed:
                self._tile = None
                self._changed.notify_all()


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
    handover, errors = _Handover(), []
    stop = keywords.get("cancel") or threading.Event()
    session = keywords.get("session")
    if isinstance(session, Session):
        session.check_consumer()
    run: dict[str, Any] = {**keywords, "cancel": stop}

    def compute() -> None:
        try:
            multiply(a, b, trans_a=trans_a, trans_b=trans_b, dtype=dtype, out=handover.put, **run)
        except BaseException as error:  # noqa: BLE001 - raised in the consumer's thread
            errors.append(error)
        finally:
            handover.end()

    # The end of the interpreter stops the run of a stream that is not at its end.
    RUNNING.add(handover.abandon)
    thread = threading.Thread(target=compute, name="hdgemm-stream", daemon=True)
    thread.start()
    try:
        for tile in handover.tiles():
            with nullcontext() if session is None else session.consumed():
                yield tile
    except BaseException:
        if handover.origin.here:
            if "cancel" not in keywords:
                stop.set()
            handover.abandon()
        raise
    finally:
        thread.join()
        RUNNING.discard(handover.abandon)
    if errors:
        raise errors[0]
