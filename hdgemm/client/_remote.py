"""The client of a job service: products, factorisations, checks and profiles."""

from __future__ import annotations

import math
import os
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from hdgemm.client._connection import Connection
from hdgemm.client._jobs import RemoteJob
from hdgemm.client._transfer import RemoteMatrix, upload
from hdgemm.errors import InputError
from hdgemm.options import BUILT_IN, Options
from hdgemm.routines.registry import commands

#: Matrices of the processes that are no routines.
_MATRICES: Final = {
    "gemm": ("a", "b", "c"),
    "verify": ("a", "b", "c"),
    "profile": (),
    "linpack": (),
}

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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
        Seconds during which a request is repeated while the server is busy or unreachable.
    first_contact
        The same, until the server has answered for the first time; None: 3 seconds, or `patience`
        where that is shorter.

    See Also
    --------
    multiply : The same product in this process.

    Examples
    --------
    >>> with hdgemm.Client("http://127.0.0.1:8000") as client:
    ...     c = client.multiply("A.npy", b)
    ...     job = client.compute("svdvals", "A.npy")
    ...     s = job.wait().result()
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 60.0,
        patience: float = 60.0,
        first_contact: float | None = None,
    ) -> None:
        token = os.environ.get("HDGEMM_TOKEN") if token is None else token
        self._connection = Connection(url, token, timeout, patience, first_contact)

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
            Arrays, paths of .npy files, uploaded matrices, or jobs, which stand for their results.
            If the server can read the same file, only its name is sent. A path that this machine
            does not have names a file of the server, absolute or relative to a folder that its jobs
            may use.
        out
            A local file for the result, which is returned as a memmap; None returns an array.
        progress
            Called with the job's status document while it runs.
        transfer
            Called during each upload and the download with the bytes transferred and their total.
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
        further = {**inputs, "output": output, "options": options}
        return self._execute("gemm", self._inputs({"a": a, "b": b, "c": c}, further, transfer))

    def plan(self, *operands: Operand, process: str = "gemm", **inputs: Any) -> dict[str, Any]:
        """Return the plan of a job and the memory that it would reserve; nothing is submitted.

        Parameters
        ----------
        *operands, process, **inputs
            As in `compute`; a product takes the arguments of `submit`.
        """
        body = self._body(process, operands, inputs)
        at = f"/v1/processes/{process}/execution"
        answer = self._connection.request("POST", at, json={"inputs": body, "dry_run": True})
        planned: dict[str, Any] = answer.json()
        return planned

    def verify(self, a: Operand, b: Operand, c: Operand, **inputs: Any) -> RemoteJob:
        """Submit a check that C = alpha·op(A)·op(B)."""
        return self._execute("verify", self._inputs({"a": a, "b": b, "c": c}, inputs))

    def compute(
        self,
        process: str,
        *operands: Operand,
        output: str | Mapping[str, Any] | None = None,
        options: Options | Mapping[str, Any] | None = None,
        transfer: Callable[[int, int], None] | None = None,
        **inputs: Any,
    ) -> RemoteJob:
        """Submit a job of any process, such as a factorisation or a solve; return it at once.

        Parameters
        ----------
        process
            A process of the service: ``"gemm"``, ``"verify"``, ``"profile"``, ``"linpack"``, or one
            that has the name of a command, such as ``"svd"`` or ``"solve"``.
        *operands
            As in `multiply`; solve and lstsq take A and B. They may be given by name, too.
        output, transfer
            As in `submit`.
        options
            As in `submit`: host_memory, threads, tile.
        **inputs
            priority, name, and the parameters of the process, as its description names them.

        Raises
        ------
        InputError
            For too many operands; as `multiply`.
        """
        further = {**inputs, "output": output, "options": options}
        return self._execute(process, self._body(process, operands, further, transfer))

    def profile(self, device: str = "host", **inputs: Any) -> RemoteJob:
        """Submit a profile of a worker's device. Inputs: quick, priority, name."""
        return self._execute("profile", {"device": device, **inputs})

    def linpack(self, n: int, **inputs: Any) -> RemoteJob:
        """Submit HPL's benchmark for order n. Inputs: nb, depth, mxp, device, threads, name."""
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
        """Return how a job's input names an operand; upload what the server cannot read itself."""
        if isinstance(operand, (RemoteMatrix, RemoteJob)):
            return operand.reference
        if isinstance(operand, (str, os.PathLike)):
            path = Path(operand)
            if self._reaches(path):
                return {"path": str(path.resolve())}
            if not path.exists():
                return {"path": self._path_on_server(path)}
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
        """Ask the service to stop a job, which takes at most the time of one tile."""
        return self.job(job_id).cancel()

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reaches(self, path: Path) -> bool:
        """Return whether the server has the same file under the same path.

        Raises `InputError` for a path that cannot be sent as text.
        """
        try:
            os.path.realpath(path).encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"the path {os.fsencode(path)!r} is not UTF-8: rename the file or its folder",
                path=str(path),
            ) from error
        try:
            mine = path.stat()
            at = {"path": str(path.resolve())}
            theirs = self._connection.request("GET", "/v1/files", params=at).json()
        except (OSError, InputError):
            return False
        return (theirs["size"], theirs["mtime_ns"], theirs["inode"]) == (
            mine.st_size,
            mine.st_mtime_ns,
            mine.st_ino,
        )

    def _path_on_server(self, path: Path) -> str:
        """Return the server's path of a file that this machine does not have."""
        try:
            found = self._connection.request("GET", "/v1/files", params={"path": str(path)}).json()
        except InputError as error:
            raise InputError(
                f"cannot open {path}: No such file here, and on the server: {error}", path=str(path)
            ) from error
        return str(found["path"])

    def _body(
        self,
        process: str,
        operands: Sequence[Operand],
        inputs: Mapping[str, Any],
        transfer: Callable[[int, int], None] | None = None,
    ) -> dict[str, Any]:
        """Return the inputs of a process; those that are matrices are uploaded where needed."""
        routine = commands().get(process)
        names = _MATRICES.get(process, ("a", "b"))
        if routine is not None:
            names = tuple(each.name for each in routine.operands)
        if len(operands) > len(names):
            raise InputError(f"{process} takes {len(names)} matrices, got {len(operands)}")
        matrices = dict(zip(names, operands, strict=False))
        matrices |= {name: inputs[name] for name in names if name in inputs}
        further = {name: value for name, value in inputs.items() if name not in names}
        return self._inputs(matrices, further, transfer)

    def _inputs(
        self,
        operands: Mapping[str, Operand | None],
        further: Mapping[str, Any],
        transfer: Callable[[int, int], None] | None = None,
    ) -> dict[str, Any]:
        """Return the inputs of a request; operands are uploaded where needed."""
        body: dict[str, Any] = {
            name: self.reference(matrix, transfer)
            for name, matrix in operands.items()
            if matrix is not None
        }
        for name, value in further.items():
            if isinstance(value, float) and not math.isfinite(value):
                body[name] = f"{value:g}"  # JSON has no infinity, and norms have "inf"
            elif value is not None:
                body[name] = value
        if isinstance(body.get("output"), str):
            body["output"] = {"path": body["output"]}
        if isinstance(body.get("options"), Options):
            body["options"] = _values(body["options"])
        return body

    def _execute(self, process: str, inputs: Mapping[str, Any]) -> RemoteJob:
        # With a key, a repeated request answers the same job.
        key = {"Idempotency-Key": secrets.token_hex(16)}
        at = f"/v1/processes/{process}/execution"
        answer = self._connection.request("POST", at, json={"inputs": inputs}, headers=key)
        return RemoteJob(self._connection, answer.json())


def _values(options: Options) -> dict[str, Any]:
    """Return the options that differ from the built-in defaults as the service's JSON."""
    values = {key: value for key, value in asdict(options).items() if value != BUILT_IN[key]}
    if isinstance(devices := values.get("devices"), str):
        values["devices"] = [devices]
    return values
