"""A job of a service."""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.client._connection import RemoteError
from hdgemm.client._transfer import download
from hdgemm.errors import CancelledRunError, InputError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from hdgemm.client._connection import Connection

_FINISHED: Final = frozenset({"successful", "failed", "dismissed"})
_FIRST_LOOK: Final = 0.1
_LAST_LOOK: Final = 2.0


class RemoteJob:
    """A job of the service. `info` is the status document that was fetched last.

    `refresh` and `wait` fetch a new one.

    See Also
    --------
    hdgemm.Client : Its methods `submit` and `compute` return jobs.
    RemoteError : Raised where the service fails.

    Examples
    --------
    >>> with hdgemm.Client("http://127.0.0.1:8000") as client:
    ...     job = client.compute("svdvals", "A.npy")
    ...     print(job.wait().status, job.report()["seconds"])
    ...     s = job.result()
    """

    def __init__(self, connection: Connection, info: Mapping[str, Any]) -> None:
        self._connection = connection
        self.info = info

    @property
    def id(self) -> str:
        """The job's identifier."""
        return str(self.info["jobID"])

    @property
    def status(self) -> str:
        """The status in `info`: accepted, running, successful, failed or dismissed."""
        return str(self.info["status"])

    @property
    def finished(self) -> bool:
        """Whether the job has ended."""
        return self.status in _FINISHED

    @property
    def reference(self) -> dict[str, str]:
        """How an input of another job names this job's result."""
        return {"job": self.id}

    def refresh(self) -> RemoteJob:
        """Fetch the status document, and return this job."""
        self.info = self._connection.request("GET", f"/v1/jobs/{self.id}").json()
        return self

    def wait(
        self,
        progress: Callable[[Mapping[str, Any]], None] | None = None,
        timeout: float | None = None,
    ) -> RemoteJob:
        """Wait until the job has ended.

        Parameters
        ----------
        progress
            Called with each status document that is fetched.
        timeout
            Seconds to wait; None waits without a limit.

        Raises
        ------
        TimeoutError
            After `timeout`; the job continues.
        """
        until = None if timeout is None else time.monotonic() + timeout
        began = time.monotonic()
        while True:
            self.refresh()
            if progress is not None:
                progress(self.info)
            if self.finished:
                return self
            # The delay is at most a tenth of the job's time, and requests stay few.
            pause = min(max(_FIRST_LOOK, (time.monotonic() - began) / 10), _LAST_LOOK)
            if until is not None and time.monotonic() + pause > until:
                raise TimeoutError(f"job {self.id} is {self.status} after {timeout} seconds")
            time.sleep(pause)

    def check(self) -> RemoteJob:
        """Return this job if it succeeded, else raise its error."""
        if self.status == "successful":
            return self
        error = self.info.get("error") or {}
        was = "failed" if self.status == "failed" else f"is {self.status}"
        detail = f"job {self.id} {was}: {error.get('detail') or self.info['message']}"
        if self.status == "dismissed":
            raise CancelledRunError(detail, job=self.id)
        kind = InputError if error.get("origin") == "user" else RemoteError
        raise kind(detail, job=self.id, problem=dict(error))

    def result(
        self,
        out: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> NDArray[Any]:
        """Download the result into memory, or into the file `out`; return an array or a memmap."""
        return self.array("c", out, progress)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays that the job stored beside its result, for `array`."""
        beside = (self.info["output"] or {}).get("beside", ())
        found = (re.search(r"[.-](\w+)\.npy$", each["path"]) for each in beside)
        return tuple(match[1] for match in found if match is not None)

    def array(
        self,
        name: str,
        out: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> NDArray[Any]:
        """Download a further result, such as the pivots ``"piv"`` of lu, or ``"q"`` of qr.

        `out` and `progress` as in `result`; `arrays` has the names.
        """
        self.check()
        at = f"/v1/jobs/{self.id}/results/{name}"
        if out is not None:
            path = Path(out).absolute()
            download(self._connection, at, path, progress)
            mapped: NDArray[Any] = np.load(path, mmap_mode="r")
            return mapped
        with tempfile.TemporaryDirectory(prefix="hdgemm-") as folder:
            path = Path(folder) / "array.npy"
            download(self._connection, at, path, progress)
            loaded: NDArray[Any] = np.load(path)
            return loaded

    def report(self) -> Mapping[str, Any]:
        """Return the report of a job that succeeded."""
        self.check()
        report: Mapping[str, Any] = self.info["report"] or {}
        return report

    def values(self) -> Mapping[str, Any]:
        """Return the small results of a job that succeeded, such as the ``"rank"`` of lstsq."""
        values: Mapping[str, Any] = self.report().get("values", {})
        return values

    def log(self) -> str:
        """Return the job's log."""
        return self._connection.request("GET", f"/v1/jobs/{self.id}/log").text

    def cancel(self) -> RemoteJob:
        """Ask the service to stop this job, which takes at most the time of one tile."""
        self.info = self._connection.request("POST", f"/v1/jobs/{self.id}/cancel").json()
        return self

    def delete(self) -> None:
        """Delete the job's record, log and kept result; a job that has not ended is cancelled."""
        self._connection.request("DELETE", f"/v1/jobs/{self.id}")

    def __repr__(self) -> str:
        return f"<RemoteJob {self.id} {self.status}>"
