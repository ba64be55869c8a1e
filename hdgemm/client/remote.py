"""The client of a job service: products, factorisations, checks and profiles."""

from __future__ import annotations

import os
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from hdgemm.client.connection import Connection
from hdgemm.client.jobs import RemoteJob
from hdgemm.client.transfer import RemoteMatrix, upload
from hdgemm.errors import InputError
from hdgemm.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    Operand = NDArray[np.generic] | str | os.PathLike[str] | RemoteMatrix | RemoteJob


class Client:
    """A job service on this or another machine.

    Parameters
    ----------
    url
        Address of the service, like ``"http://127.0.0.1:8000"``.
    token
        A token that ``hdgemm token create`` has printed on the server; None: the environment
        variable ``HDGEMM_TOKEN``, if it is set. A server without tokens needs none on its own
        machine.
    timeout
        Seconds until an unanswered request fails.
    patience
        Seconds during which safe requests are repeated.
    """

    def __init__(
        self, url: str, token: str | None = None, *, timeout: float = 60.0, patience: float = 60.0
    ) -> None:
        token = os.environ.get("HDGEMM_TOKEN") if token is None else token
        self._connection = Connection(url, token, timeout, patience)

    def multiply(
        self,
        a: Operand,
        b: Operand,
        *,
        out: str | os.PathLike[str] | None = None,
        progress: Callable[[Mapping[str, Any]], None] | None = None,
        transfer: Callable[[int, int], None] | None = None,
        **inputs: Any,
    ) -> NDArray[Any]:
        """Return C := alpha·op(A)·op(B) + beta·C, computed by the service.

        Parameters
        ----------
        a, b
            Arrays, paths of .npy files, uploaded matrices, or jobs for their results. A file that
            the server reaches too is named, not sent.
        out
            A local file for the result, which is returned as a memmap; None returns an array.
        progress
            Called with the job's status document while it runs.
        transfer
            Called with bytes done and in all, of each upload and of the download.
        **inputs
            c, alpha, beta, trans_a, trans_b, options, priority, name: as in `submit`.

        Raises
        ------
        InputError, DoesNotFitError
            The service refuses the inputs, or the job fails because of them.
        RemoteError
            The service fails or cannot be reached.
        """
        job = self.submit(a, b, transfer=transfer, **inputs)
        try:
            job.wait(progress)
        except BaseException:
            if not job.finished:
                job.cancel()
            raise
        return job.result(out, transfer)

    def submit(
        self,
        a: Operand,
        b: Operand,
        *,
        c: Operand | None = None,
        output: str | Mapping[str, Any] | None = None,
        options: Options | Mapping[str, Any] | None = None,
        transfer: Callable[[int, int], None] | None = None,
        **inputs: Any,
    ) -> RemoteJob:
        """Submit a product and return its job at once.

        Parameters
        ----------
        a, b, c
            As in `multiply`.
        output
            A path on the server for the result, or the API's output object; None: the server
            keeps it for download.
        options
            `hdgemm.Options`, or the API's options object.
        **inputs
            alpha, beta, trans_a, trans_b, priority, name.
        """
        body = self._inputs(a, b, c, output, options, transfer, inputs)
        return self._execute("gemm", body)

    def plan(self, a: Operand, b: Operand, **inputs: Any) -> dict[str, Any]:
        """Return the plan and the resources of a product; arguments as of `submit`."""
        body = self._inputs(
            a, b, inputs.pop("c", None), inputs.pop("output", None), inputs.pop("options", None),
            None, inputs,
        )  # fmt: skip
        at = "/v1/processes/gemm/execution"
        answer = self._connection.request("POST", at, json={"inputs": body, "dry_run": True})
        planned: dict[str, Any] = answer.json()
        return planned

    def verify(self, a: Operand, b: Operand, c: Operand, **inputs: Any) -> RemoteJob:
        """Submit a check that C = alpha·op(A)·op(B)."""
        named = {"a": self.reference(a), "b": self.reference(b), "c": self.reference(c)}
        return self._execute("verify", {**named, **inputs})

    def compute(
        self,
        process: str,
        a: Operand,
        b: Operand | None = None,
        *,
        output: str | Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        transfer: Callable[[int, int], None] | None = None,
        **inputs: Any,
    ) -> RemoteJob:
        """Submit a factorisation or a solve and return its job at once.

        Parameters
        ----------
        process
            cholesky, lu, qr, solve, lstsq or syrk.
        a, b
            As in `multiply`; solve and lstsq take b.
        output, transfer
            As in `submit`.
        options
            host_memory, threads, tile.
        **inputs
            The process's own (lower, mode, assume_a, transposed, refine), priority, name.
        """
        body: dict[str, Any] = {"a": self.reference(a, transfer), **inputs}
        if b is not None:
            body["b"] = self.reference(b, transfer)
        if output is not None:
            body["output"] = {"path": output} if isinstance(output, str) else dict(output)
        if options is not None:
            body["options"] = dict(options)
        return self._execute(process, body)

    def profile(self, device: str = "host", **inputs: Any) -> RemoteJob:
        """Submit a profile of a worker's device; simulate, quick, priority and name are inputs."""
        return self._execute("profile", {"device": device, **inputs})

    def linpack(self, n: int, **inputs: Any) -> RemoteJob:
        """Submit HPL's benchmark; nb, depth, mxp, device, threads and name are inputs."""
        return self._execute("linpack", {"n": n, **inputs})

    def upload(
        self,
        matrix: NDArray[Any] | str | os.PathLike[str],
        progress: Callable[[int, int], None] | None = None,
    ) -> RemoteMatrix:
        """Upload a matrix; an upload that was interrupted is resumed."""
        return upload(self._connection, matrix, progress)

    def reference(
        self, operand: Operand, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, str]:
        """Return the reference to an operand; upload it where the server does not reach it."""
        if isinstance(operand, (RemoteMatrix, RemoteJob)):
            return operand.reference
        if isinstance(operand, (str, os.PathLike)) and self._reaches(Path(operand)):
            return {"path": str(Path(operand).resolve())}
        return self.upload(operand, progress).reference

    def job(self, job_id: str) -> RemoteJob:
        """Return a job."""
        info = self._connection.request("GET", f"/v1/jobs/{job_id}").json()
        return RemoteJob(self._connection, info)

    def jobs(self, **filters: Any) -> Iterator[RemoteJob]:
        """Yield this token's jobs, newest first; filters are status, processID and name."""
        at: str | None = "/v1/jobs"
        parameters: Mapping[str, Any] | None = filters
        while at is not None:
            page = self._connection.request("GET", at, params=parameters).json()
            for info in page["jobs"]:
                yield RemoteJob(self._connection, info)
            queries = (urlsplit(x["href"]).query for x in page["links"] if x["rel"] == "next")
            query = next(queries, None)
            # The link's path has the prefix of a proxy, as the client's own URL.
            at, parameters = None if query is None else f"/v1/jobs?{query}", None

    def cancel(self, job_id: str) -> RemoteJob:
        """Ask a job to stop; it stops within one tile."""
        return self.job(job_id).cancel()

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reaches(self, path: Path) -> bool:
        """Return whether the server has the same file under the same path."""
        try:
            mine = path.stat()
            at = {"path": str(path.resolve())}
            theirs = self._connection.request("GET", "/v1/files", params=at).json()
        except (OSError, InputError):
            return False
        return (theirs["size"], theirs["mtime_ns"], theirs["inode"]) == (
            mine.st_size, mine.st_mtime_ns, mine.st_ino,
        )  # fmt: skip

    def _inputs(
        self,
        a: Operand,
        b: Operand,
        c: Operand | None,
        output: str | Mapping[str, Any] | None,
        options: Options | Mapping[str, Any] | None,
        transfer: Callable[[int, int], None] | None,
        rest: Mapping[str, Any],
    ) -> dict[str, Any]:
        body = {"a": self.reference(a, transfer), "b": self.reference(b, transfer), **rest}
        if c is not None:
            body["c"] = self.reference(c, transfer)
        if output is not None:
            body["output"] = {"path": output} if isinstance(output, str) else dict(output)
        if options is not None:
            body["options"] = _options(options)
        return body

    def _execute(self, process: str, inputs: Mapping[str, Any]) -> RemoteJob:
        # With a key, a repeated request answers the same job.
        key = {"Idempotency-Key": secrets.token_hex(16)}
        at = f"/v1/processes/{process}/execution"
        answer = self._connection.request("POST", at, json={"inputs": inputs}, headers=key)
        return RemoteJob(self._connection, answer.json())


def _options(options: Options | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(options, Options):
        return dict(options)
    values = {key: value for key, value in asdict(options).items() if value is not None}
    if not isinstance(values["devices"], str):
        values["devices"] = list(values["devices"])
    elif values["devices"] != "auto":
        values["devices"] = [values["devices"]]
    if "tile" in values:
        values["tile"] = list(values["tile"])
    return values
