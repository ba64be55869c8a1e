"""The tree of one pass on a cluster: pieces of the rows, and results that are combined in order.

The client submits each combination when both of its results are there. So a node of the tree can
have several attempts, of which the first result counts: a node that takes three times as long as a
piece is expected to, while another worker has nothing to do, is given to that worker, too. Results
that a combination waits for may lie on a worker that does not answer: then they are computed again.
"""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hdgemm.cluster._row_tasks import carried, combine_rows, receipt_of, reduce_rows
from hdgemm.cluster.connection import ClusterError
from hdgemm.errors import HdgemmError, load_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hdgemm.cluster._row_tasks import Receipt, Reduced, RowJob

#: Seconds between two looks at the caller's cancel event and at idle workers.
_LOOK_SECONDS: Final = 0.25
#: A node is late after so many times the expected seconds of a piece, and these seconds at least.
_LATE: Final = 3.0
_LEAST_SECONDS: Final = 1.0
#: Before a piece was reduced, nodes are late after so many seconds.
_FIRST_SECONDS: Final = 10.0
#: A worker is not given more when its last heartbeat is so much older than the newest one: Dask's
#: workers send one in each half second, and in each five seconds from 200 workers on.
_SILENT_SECONDS: Final = 6.0
#: Seconds in which a worker must answer with a receipt, and with the result of the pass.
_RECEIPT_SECONDS: Final = 5.0
_RESULT_SECONDS: Final = 60.0


@dataclass(eq=False, slots=True)
class _Attempt:
    """One computation of a node: the future of what its rows are reduced to, and when it began.

    Parameters
    ----------
    receipt
        The future of a piece's receipt; None of a combination.
    """

    result: Any
    receipt: Any
    began: float

    @property
    def awaited(self) -> Any:
        """The future whose end is waited for."""
        return self.result if self.receipt is None else self.receipt

    def release(self) -> None:
        """Forget the computation: Dask cancels it, if nothing else needs it."""
        self.result.release()
        if self.receipt is not None:
            self.receipt.release()


@dataclass(eq=False, slots=True)
class _Node:
    """A piece of the rows, `number` from `place`, or two `children` that are combined."""

    level: int = 0
    number: int = -1
    place: tuple[int, int] = (0, 0)
    children: tuple[_Node, ...] = ()
    parent: _Node | None = None
    attempts: list[_Attempt] = field(default_factory=list)
    result: Any = None
    recorded: bool = False

    @property
    def ready(self) -> bool:
        """Whether both results of a combination are there, and its own is not."""
        return self.result is None and all(child.result is not None for child in self.children)

    def nodes(self) -> Iterator[_Node]:
        """Yield this node and all below it."""
        yield self
        for child in self.children:
            yield from child.nodes()


class RowTree:
    """One pass in its pieces.

    Parameters
    ----------
    client
        A `distributed.Client`.
    job
        The pass.
    places
        The first row of each piece, and the row after its last one, in order.
    """

    def __init__(self, client: Any, job: RowJob, places: Sequence[tuple[int, int]]) -> None:
        self._client, self._job = client, job
        self._root = _tree(places)
        self._nodes = list(self._root.nodes())
        self._submitted = 0
        self._seconds: list[float] = []  # of the pieces that are reduced
        self._progressed = time.perf_counter()  # when the last node was computed
        self._idle_since: float | None = None
        self._looked = 0.0  # when idle workers were looked for

    def reduce(self, check: Callable[[], None], record: Callable[[Receipt, int], None]) -> Reduced:
        """Compute all nodes; return what all rows are reduced to.

        Parameters
        ----------
        check
            Called every now and then; it raises where the caller has cancelled the pass.
        record
            Called with the receipt and the number of each piece, once.
        """
        distributed = load_extra("distributed", "a cluster needs distributed", "dask")
        sent = self._submit(carried, self._job)
        self._begin_pieces(sent)
        while True:
            check()
            live = {each.awaited: (n, each) for n in self._nodes for each in n.attempts}
            with suppress(TimeoutError):
                distributed.wait(list(live), timeout=_LOOK_SECONDS, return_when="FIRST_COMPLETED")
            for future in [future for future in live if future.done()]:
                node, attempt = live[future]
                if attempt in node.attempts and self._finish(node, attempt, sent, record):
                    found: Reduced | None = self._gathered(attempt.result, node, _RESULT_SECONDS)
                    if found is not None:
                        return found
                    self._compute_again(node, sent, [])
            if time.perf_counter() - self._looked > _LOOK_SECONDS:
                self._help_late()
                self._looked = time.perf_counter()

    def release(self) -> None:
        """Forget all futures: what still runs is cancelled."""
        for node in self._nodes:
            for attempt in node.attempts:
                attempt.release()
            if node.result is not None:
                node.result.release()

    def _key(self, function: Any) -> tuple[str, int]:
        """Return a key that no other task has, in the function's task group of this pass."""
        self._submitted += 1
        return f"hdgemm-{function.__name__}-{self._job.name}", self._submitted

    def _submit(self, function: Any, *arguments: Any, **how: Any) -> Any:
        return self._client.submit(function, *arguments, key=self._key(function), **how)

    def _begin_pieces(self, sent: Any) -> None:
        """Compute all pieces, in one graph: the scheduler queues the tasks of a large group until a
        worker is idle, where it would give them one by one to the worker that has the job.
        """
        pieces = [node for node in self._nodes if not node.children]
        places = zip(*(node.place for node in pieces), strict=True)
        keys = [[self._key(each) for _ in pieces] for each in (reduce_rows, receipt_of)]
        results = self._client.map(reduce_rows, [sent] * len(pieces), *places, key=keys[0])
        receipts = self._client.map(receipt_of, results, key=keys[1], priority=1)
        for node, result, receipt in zip(pieces, results, receipts, strict=True):
            node.attempts.append(_Attempt(result, receipt, time.perf_counter()))

    def _attempt(self, node: _Node, sent: Any, workers: Sequence[str] = ()) -> None:
        """Compute a node, on some of the workers or on any."""
        how: dict[str, Any] = {"workers": list(workers)} if workers else {}
        receipt = None
        if node.children:
            parts = [child.result for child in node.children]
            result = self._submit(combine_rows, *parts, priority=1, **how)
        else:
            result = self._submit(reduce_rows, sent, *node.place, **how)
            receipt = self._submit(receipt_of, result, priority=1, **how)
        node.attempts.append(_Attempt(result, receipt, time.perf_counter()))

    def _finish(
        self, node: _Node, attempt: _Attempt, sent: Any, record: Callable[[Receipt, int], None]
    ) -> bool:
        """Take the first result of a node; say whether it covers all rows."""
        if attempt.receipt is None:
            self._raise_error(attempt.result, node)
        else:
            receipt = self._gathered(attempt.receipt, node, _RECEIPT_SECONDS)
            if receipt is None:  # its worker does not answer
                node.attempts.remove(attempt)
                attempt.release()
                self._attempt(node, sent)
                return False
            if not node.recorded:
                record(receipt, node.number)
                node.recorded = True
                ends = [event.end for event in receipt.events]
                self._seconds.append(max(ends) - min(event.start for event in receipt.events))
        node.result, self._progressed = attempt.result, time.perf_counter()
        if attempt.receipt is not None:
            attempt.receipt.release()
        node.attempts.remove(attempt)
        _forget_attempts(node)
        for child in node.children:
            _forget_attempts(child)
            if child.result is not None:  # else it is computed again, for nobody now
                child.result.release()  # Dask computes it again where the node is lost
        if node.parent is not None and node.parent.ready:
            self._attempt(node.parent, sent)
        return node.parent is None

    def _gathered(self, future: Any, node: _Node, seconds: float) -> Any:
        """Return the value of a future that has ended; None where its worker does not answer."""
        self._raise_error(future, node)
        try:
            return future.result(timeout=seconds)
        except TimeoutError:
            return None

    def _raise_error(self, future: Any, node: _Node) -> None:
        if future.status == "finished":
            return
        try:
            future.result()
        except HdgemmError:
            raise
        except Exception as error:
            what = "results of rows were not combined"
            if not node.children:
                what = f"piece {node.number} of the rows was not reduced"
            raise ClusterError(
                f"{what} ({error}): the workers' logs, or Dask's dashboard, say why (memory limit?)"
            ) from error

    def _help_late(self) -> None:
        """Give nodes that are late to workers that have nothing to do."""
        late = _FIRST_SECONDS
        if self._seconds:
            late = max(_LATE * statistics.median(self._seconds), _LEAST_SECONDS)
        processing, now = self._client.processing(), time.perf_counter()
        # A combination may wait for results of a worker that does not answer: it occupies nothing.
        busy = {name for name, keys in processing.items() if any(map(_is_piece, keys))}
        if now - self._progressed > late:  # so may all pieces, for the job
            busy.clear()
        if len(busy) == len(processing):
            self._idle_since = None
            return
        since = self._idle_since = self._idle_since or self._progressed
        found = [
            node
            for node in self._nodes
            if node.attempts and now - max(since, node.attempts[-1].began) > late
        ]
        idle = sorted(self._heard() - busy) if found else []
        if not idle:
            return
        sent = self._submit(carried, self._job, workers=idle)
        for node in found:
            if all(child.result is not None for child in node.children):
                self._compute_again(node, sent, idle)

    def _heard(self) -> set[str]:
        """Return the workers that have sent their last heartbeats."""
        info = self._client.scheduler_info(n_workers=-1)["workers"]
        seen = {name: each["last_seen"] for name, each in info.items()}
        newest = max(seen.values(), default=0.0)
        return {name for name, last in seen.items() if newest - last < _SILENT_SECONDS}

    def _compute_again(self, node: _Node, sent: Any, workers: Sequence[str]) -> None:
        """Compute a node once more, and those parts of it that do not lie on these workers."""
        node.result = None
        if not node.children:
            self._attempt(node, sent, workers)
            return
        for child in node.children:
            if not self._lies_on(child, workers):
                self._compute_again(child, sent, workers)
        if node.ready:
            self._attempt(node, sent, workers)

    def _lies_on(self, node: _Node, workers: Sequence[str]) -> bool:
        """Say whether one of these workers holds the result of a node."""
        if node.result is None or node.result.status != "finished":
            return False
        holders = self._client.who_has([node.result]).get(node.result.key, ())
        return bool(set(holders) & set(workers))


def _forget_attempts(node: _Node) -> None:
    """Release all attempts of a node, and of those below it."""
    for each in node.nodes():
        for attempt in each.attempts:
            attempt.release()
        each.attempts.clear()


def _is_piece(key: str | tuple[Any, ...]) -> bool:
    """Say whether a task reduces a piece of the rows."""
    group = key[0] if isinstance(key, tuple) else key
    return str(group).startswith(f"hdgemm-{reduce_rows.__name__}-")


def _tree(places: Sequence[tuple[int, int]]) -> _Node:
    """Return the root: neighbours of one level are combined as soon as they are there, so that few
    results wait.
    """
    stack: list[_Node] = []
    for number, place in enumerate(places):
        stack.append(_Node(number=number, place=place))
        while len(stack) > 1 and stack[-1].level == stack[-2].level:
            _join(stack, stack[-1].level + 1)
    while len(stack) > 1:
        _join(stack, stack[-2].level)
    return stack[0]


def _join(stack: list[_Node], level: int) -> None:
    """Replace the last two nodes by one that combines them."""
    children = stack[-2], stack[-1]
    node = _Node(level, children=children)
    for child in children:
        child.parent = node
    stack[-2:] = [node]
