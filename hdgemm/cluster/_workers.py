"""The workers of a Dask cluster: which are there, which take part, and why others do not."""

from __future__ import annotations

import logging
import socket
import time
from asyncio import CancelledError
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from hdgemm.cluster.connection import ClusterError, Scheduler
from hdgemm.cluster.task import inspect
from hdgemm.errors import HdgemmError

if TYPE_CHECKING:
    from hdgemm.cluster._job import Extents, WorkerInfo
    from hdgemm.cluster._panel_job import AnyJob

_LOG: Final = logging.getLogger(__name__)
#: Seconds between two looks at answers.
_POLL_SECONDS: Final = 0.05
#: Seconds to fetch an answer; it is lost with a worker that has died since it answered.
_FETCH_SECONDS: Final = 2.0
#: A plan waits so many seconds for answers; a worker that computes a block answers after it.
_PLAN_SECONDS: Final = 60.0


def own_version() -> str:
    """Return the client's version, as installed; workers must have the same."""
    return version("hdgemm")


class _LostAnswerError(Exception):
    """An answer could not be fetched in time."""


@dataclass
class _Asked:
    """A worker's two answers: its version, then its description."""

    version: Any
    since: float
    info: Any = None


class Workers:
    """The workers of a client's cluster, asked for their version, storage and speed.

    A worker takes part as soon as it has answered; workers that come later are asked then.
    """

    def __init__(self, client: Any, job: AnyJob | Extents) -> None:
        self._client = client
        self._job = job
        self._asked: dict[str, _Asked] = {}
        self._pending: set[str] = set()
        self._start: Any = None
        #: Workers that take part, and all that ever did.
        self.joined: dict[str, WorkerInfo] = {}
        self.known: dict[str, WorkerInfo] = {}
        #: Seconds to add to a worker's clock to get the client's.
        self.offsets: dict[str, float] = {}
        #: Workers that are there and take no part, with the reason.
        self.refused: dict[str, str] = {}

    def update(self, present: set[str]) -> list[str]:
        """Take the addresses of all workers that are there; return the members that are gone."""
        gone = [address for address in self.joined if address not in present]
        for address in self._asked.keys() - present:
            self.forget(address)
        for address in present - self._asked.keys():
            # A function of the standard library: it needs no hdgemm there.
            self._asked[address] = _Asked(
                self._submit(address, version, "hdgemm"), time.monotonic()
            )
            self._pending.add(address)
        if not present and self._start is None:
            # Without a task, a cluster that scales itself starts no worker.
            self._start = self._client.submit(version, "hdgemm", pure=False)
        return gone

    @property
    def count(self) -> int:
        """Workers that take part or have not answered yet."""
        return len(self.joined) + len(self._pending)

    @property
    def waiting(self) -> bool:
        """Whether a worker that is there has not answered yet."""
        return bool(self._pending)

    def silent(self, seconds: float) -> list[str]:
        """Return the workers that were asked so long ago and have not answered."""
        asked_before = time.monotonic() - seconds
        return sorted(each for each in self._pending if self._asked[each].since <= asked_before)

    def forget(self, address: str) -> None:
        """Ask a worker again where it is there at the next update."""
        del self._asked[address]
        self._pending.discard(address)
        self.joined.pop(address, None)
        self.refused.pop(address, None)

    def close(self) -> None:
        """Take back the questions that are not answered yet."""
        for asked in (self._asked[address] for address in self._pending):
            for question in (asked.version, asked.info):
                if question is not None:
                    question.cancel()
        self._asked.clear()
        self._pending.clear()

    def exclude(self, address: str, reason: str) -> None:
        """Let a worker take no further part."""
        self.joined.pop(address, None)
        self._pending.discard(address)
        self.refused[address] = reason
        _LOG.warning("%s takes no part: %s", address, reason)

    def _submit(self, address: str, function: Any, *arguments: Any) -> Any:
        # Ahead of the blocks, so that a new worker starts at once.
        return self._client.submit(
            function, *arguments, workers=[address], pure=False, priority=10, retries=0
        )

    def answers(self) -> list[str]:
        """Return the workers that take part from now on."""
        new = []
        for address in tuple(self._pending):
            asked = self._asked[address]
            try:
                if asked.info is None and asked.version.done():
                    if (found := _fetched(asked.version)) != (own := own_version()):
                        self.exclude(address, f"it has hdgemm {found}, the client has {own}")
                        continue
                    asked.info = self._submit(address, inspect, self._job)
                if asked.info is not None and asked.info.done():
                    if isinstance(info := _fetched(asked.info), HdgemmError):
                        self.exclude(address, str(info))
                        continue
                    self._join(address, info)
                    self._pending.discard(address)
                    new.append(address)
            except _LostAnswerError:
                asked.info = None  # asked again; the next update finds a worker that is gone
                asked.version = self._submit(address, version, "hdgemm")
            except PackageNotFoundError:
                self.exclude(address, "hdgemm is not installed there")
            except Exception as error:  # noqa: BLE001 - whatever a worker's environment raises
                self.exclude(address, f"{type(error).__name__}: {error}")
        return new

    def _join(self, address: str, info: WorkerInfo) -> None:
        self.joined[address] = self.known[address] = info
        # On one machine the clocks are one; else as exact as the answer was prompt.
        same = info.host == socket.gethostname()
        self.offsets[address] = 0.0 if same else time.time() - info.clock

    def reasons(self) -> str:
        """Return why no worker takes part, worker by worker."""
        if not self.refused:
            return "it has no workers"
        return "; ".join(f"{address}: {why}" for address, why in sorted(self.refused.items()))


def _fetched(answer: Any) -> Any:
    """Return what a worker answered; raise what it raised."""
    try:
        return answer.result(_FETCH_SECONDS)
    except (Exception, CancelledError) as error:
        if answer.status == "error":
            raise
        # Lost with its worker, or cancelled with the connection, which `distributed.utils.sync`
        # turns into an UnboundLocalError.
        raise _LostAnswerError from error


def ask(client: Any, job: AnyJob | Extents) -> dict[str, WorkerInfo]:
    """Return the workers that are there and can take part in a job, by address.

    Raise `ClusterError`, worker by worker with the reason, when there are none.
    """
    workers = Workers(client, job)
    scheduler = Scheduler(client, "plan again with another one")
    with scheduler.connected():
        workers.update(scheduler.addresses())
        workers.answers()
        while workers.waiting:
            for address in workers.silent(_PLAN_SECONDS):
                workers.exclude(address, f"it has not answered for {_PLAN_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)
            workers.update(scheduler.addresses())
            workers.answers()
    if not workers.joined:
        raise ClusterError(f"no worker can take part: {workers.reasons()}")
    return workers.joined
