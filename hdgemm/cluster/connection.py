"""Connection to the cluster that `--cluster` and the service's setting name, and its limits."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hdgemm.child_process import SAFE_PATH
from hdgemm.errors import HdgemmError, InputError, load_extra
from hdgemm.machine.limits import cores

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Without Dask's samples of stacks every 10 ms and of event loops every 20 ms, which take about 1 %
#: of a core in each process.
_LOCAL_SETTINGS: Final = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    # Workers print tracebacks of heartbeats when the cluster closes; the environment sets levels.
    "distributed.nanny.pre-spawn-environ.DASK_LOGGING__DISTRIBUTED": "critical",
}
#: Longest wait for a connection, as Dask reads it.
_CONNECT_SECONDS: Final = "10s"
#: Longest wait for one answer of the scheduler, in seconds. A busy one answers later.
_ANSWER_SECONDS: Final = 2.0
#: Beginning of the names of topics under which workers send receipts.
TOPIC_PREFIX: Final = "hdgemm-"
#: Seconds after which events are removed that workers had sent as the run ended.
_LATE_SECONDS: Final = 5.0
#: A scheduler that has not answered for so many seconds is lost.
_SILENCE_SECONDS: Final = 60.0


class ClusterError(HdgemmError):
    """The cluster cannot go on: no scheduler, or no worker that can take part.

    See Also
    --------
    multiply, cholesky, row_passes : Raise it.
    """


class Scheduler:
    """The scheduler of a client; no question to it waits without a limit.

    `advice` says in error messages how to go on when it is lost.
    """

    def __init__(self, client: Any, advice: str) -> None:
        self._client = client
        #: Dask connects again by itself, but without the subscription to receipts.
        self._connection = client.scheduler_comm
        self._advice = advice
        self._answered = time.monotonic()
        self._present: set[str] = set()

    def check(self, cause: BaseException | None = None) -> None:
        """Raise `ClusterError` when the client has lost it."""
        status = self._client.status
        if status == "running" and self._client.scheduler_comm is not self._connection:
            status = "connected again"
        if status != "running":
            raise ClusterError(f"the scheduler is lost ({status}): {self._advice}") from cause

    def addresses(self) -> set[str]:
        """Return the addresses of its workers, as it last named them while it is busy."""
        try:
            self._present = set(self._client.nthreads(callback_timeout=_ANSWER_SECONDS))
            self._answered = time.monotonic()
        except TimeoutError as error:
            self.check(error)
            silence = time.monotonic() - self._answered
            if silence > _SILENCE_SECONDS:
                raise ClusterError(
                    f"the scheduler has not answered for {silence:.0f} s: {self._advice}"
                ) from error
        except Exception as error:
            self.check(error)
            raise ClusterError(
                f"the scheduler does not answer ({error}): {self._advice}"
            ) from error
        return self._present

    def start_on(self, workers: Iterable[str], coroutine: Any, *arguments: Any) -> None:
        """Have workers start a coroutine, without a task; wait a moment for those that are busy."""
        self._client.sync(
            self._client._run,  # noqa: SLF001
            coroutine,
            *arguments,
            workers=list(workers),
            wait=False,
            on_error="ignore",
            callback_timeout=_ANSWER_SECONDS,
        )

    def forget_topic(self, topic: str) -> None:
        """Remove the events of a topic from the scheduler, which keeps a thousand of each topic;
        and of topics of clients that have ended without doing so.
        """
        prefix, late = TOPIC_PREFIX, _LATE_SECONDS

        # A local function needs no hdgemm where the scheduler runs: it is sent as code.
        def forget(dask_scheduler: Any) -> None:
            topics, clients = dask_scheduler._broker._topics, dask_scheduler.clients  # noqa: SLF001

            def remove() -> None:
                for name in [name for name in topics if name.startswith(prefix)]:
                    if name == topic or not topics[name].subscribers & clients.keys():
                        del topics[name]

            remove()
            dask_scheduler.loop.call_later(late, remove)

        ask = self._client._run_on_scheduler  # noqa: SLF001
        self._client.sync(ask, forget, callback_timeout=_ANSWER_SECONDS)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Raise `ClusterError` for whatever Dask's client raises because it was closed."""
        try:
            yield
        except HdgemmError:
            raise
        except Exception as error:
            self.check(error)
            raise


def dask_client() -> type[Any]:
    """Return the class of Dask's clients; raise `InputError` where Dask is not installed."""
    client: type[Any] = load_extra("distributed", "a cluster needs distributed", "dask").Client
    return client


@contextmanager
def open_cluster(where: str) -> Iterator[Any]:
    """Yield a Dask client.

    Parameters
    ----------
    where
        The address of a scheduler, ``tcp://host:8786``; the file that a scheduler has written; or
        ``local:4``, which starts four workers on this machine and stops them at the end.

    Raises
    ------
    InputError
        When it is none of these, or no scheduler answers.
    """
    client_type = dask_client()
    with ExitStack() as stack:
        try:
            client = _client(where, stack, client_type)
        except (OSError, ValueError, TimeoutError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"--cluster {where}: no scheduler answers ({error})") from error
        yield client


def _client(where: str, stack: ExitStack, client: Any) -> Any:
    if match := re.fullmatch(r"local:(\d+)", where):
        count = int(match[1])
        if not 1 <= count <= 1024:
            raise InputError(f"--cluster {where}: give 1 to 1024 workers")
        return stack.enter_context(local_cluster(count, max(1, cores() // count)))
    if not re.match(r"\w+://", where):
        where = _address_in(where)
    return stack.enter_context(client(where, timeout=_CONNECT_SECONDS))


@contextmanager
def local_cluster(workers: int, threads: int) -> Iterator[Any]:
    """Yield the client of workers on this machine, each with so many threads."""
    import distributed
    from dask import config

    dask: Any = distributed  # its constructors have no types
    with (
        _safe_path(),
        config.set(_LOCAL_SETTINGS),
        dask.LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            processes=True,
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        dask.Client(cluster) as client,
    ):
        yield client


@contextmanager
def _safe_path() -> Iterator[None]:
    """Keep the current folder off the path of the processes of multiprocessing: they begin with -c.

    Programs that the caller starts later get the environment that it had.
    """
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        del os.environ[SAFE_PATH]
        if before is not None:
            os.environ[SAFE_PATH] = before


def _address_in(file: str) -> str:
    """Return the address in the file that a scheduler has written."""
    try:
        return str(json.loads(Path(file).read_text(encoding="utf-8"))["address"])
    except FileNotFoundError as error:
        raise InputError(
            f"--cluster {file}: give a scheduler's address (tcp://host:8786), the file that it "
            "has written, or local:4"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"--cluster {file} is not the file of a scheduler: {error}") from error
