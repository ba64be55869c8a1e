"""Whether a job can be taken: shapes, plan, memory, disk and quotas, all before it is accepted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.options import Options
from hdgemm.server import jobs, paths, quotas
from hdgemm.server.backend import Problem
from hdgemm.server.models import GemmInputs, JobOptions, ProfileInputs, VerifyInputs
from hdgemm.server.problems import ProblemError
from hdgemm.server.references import Source, look_up
from hdgemm.server.tables import workers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.server.backend import Library
    from hdgemm.server.records import Process
    from hdgemm.server.settings import Settings
    from hdgemm.server.tokens import Account

Inputs = GemmInputs | VerifyInputs | ProfileInputs
#: Room for a result's header.
_HEADER = 4096


@dataclass(frozen=True, kw_only=True)
class Admission:
    """A job that may be taken: its inputs as they are kept, and what it needs."""

    process: Process
    inputs: Mapping[str, Any]
    plan: Mapping[str, Any] | None
    units: Sequence[Sequence[int]] = ()
    output: Mapping[str, Any] | None
    host_bytes: int
    disk_bytes: int
    devices: tuple[str, ...]
    reads: frozenset[tuple[str, str]]

    @property
    def needs(self) -> dict[str, Any]:
        """What the answer says of it."""
        return {
            "host_bytes": self.host_bytes,
            "disk_bytes": self.disk_bytes,
            "devices": list(self.devices),
        }


class Examiner:
    """Turns a request's inputs into an `Admission`, or says why not."""

    def __init__(self, settings: Settings, library: Library) -> None:
        self._settings = settings
        self._library = library

    def examine(self, conn: sa.Connection, inputs: Inputs, account: Account) -> Admission:
        """Look at everything that does not depend on the other jobs.

        Raises
        ------
        HdgemmError
            What the user can mend: shapes, files, memory.
        ProblemError
            404 and 409 for references.
        """
        if isinstance(inputs, ProfileInputs):
            kept = inputs.model_dump(mode="json", exclude={"name", "priority"})
            return Admission(
                process="profile", inputs=kept, plan=None, output=None,
                host_bytes=quotas.largest_memory(conn, (inputs.device,), self._settings),
                disk_bytes=0, devices=(inputs.device,), reads=frozenset(),
            )  # fmt: skip
        options = self._options(conn, inputs.options)
        sources = {
            name: look_up(conn, reference, account.id, self._settings)
            for name in ("a", "b", "c")
            if (reference := getattr(inputs, name)) is not None
        }
        problem = product_of(inputs, sources)
        demand = self._library.plan(problem, options)
        kept = inputs.model_dump(mode="json", exclude={"name", "priority"})
        kept.update({name: dict(source.stored) for name, source in sources.items()})
        output, disk = None, 0
        if isinstance(inputs, GemmInputs):
            output = self._output(inputs, sources, problem)
            disk = problem.m * problem.n * np.dtype(problem.dtype).itemsize + _HEADER
        return Admission(
            process="verify" if isinstance(inputs, VerifyInputs) else "gemm",
            inputs=kept, plan=demand.plan, units=demand.units, output=output,
            host_bytes=demand.host_bytes, disk_bytes=disk, devices=_devices(inputs.options),
            reads=frozenset(source.reads for source in sources.values() if source.reads),
        )  # fmt: skip

    def _options(self, conn: sa.Connection, wanted: JobOptions) -> Options:
        memory = quotas.largest_memory(conn, _devices(wanted), self._settings)
        options = library_options(wanted, self._settings.model_copy(update={"memory": memory}))
        asked = options.host_bytes or 0
        if asked > memory:
            raise DoesNotFitError(
                f"options.host_memory asks for {asked} bytes; the largest worker has {memory}",
                requested=asked, available=memory, missing=asked - memory,
            )  # fmt: skip
        return options

    def _output(
        self, inputs: GemmInputs, sources: Mapping[str, Source], problem: Problem
    ) -> dict[str, Any]:
        wanted = inputs.output
        output = {"path": None, "overwrite": wanted.overwrite, "format": wanted.format,
                  "shape": [problem.m, problem.n], "dtype": problem.dtype}  # fmt: skip
        if wanted.path is None:
            return output
        path = paths.resolve(wanted.path, self._settings.roots)
        if path.suffix != ".npy":
            raise InputError(f"the result's name must end in .npy, got {wanted.path!r}")
        if not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent}")
        if any(sources[name].stored.get("path") == str(path) for name in ("a", "b")):
            raise InputError(f"{wanted.path!r} is an input of the same job")
        if path.exists() and not (wanted.overwrite and path.is_file()):
            raise ProblemError(409, "exists", f"{path} exists; set output.overwrite to replace it")
        return {**output, "path": str(path)}


def product_of(inputs: GemmInputs | VerifyInputs, sources: Mapping[str, Source]) -> Problem:
    """Check that shapes agree and return the product they make."""
    a, b = sources["a"].shape, sources["b"].shape
    m, k = a[::-1] if inputs.trans_a else a
    kb, n = b[::-1] if inputs.trans_b else b
    if k != kb:
        raise InputError(f"op(A) is {m}×{k} and op(B) is {kb}×{n}: {k} columns meet {kb} rows")
    if "c" in sources and sources["c"].shape != (m, n):
        raise InputError(f"C is {'×'.join(map(str, sources['c'].shape))}; the product is {m}×{n}")
    if isinstance(inputs, GemmInputs) and inputs.beta != 0.0 and inputs.c is None:
        raise InputError(f"beta is {inputs.beta}, and there is no C to scale by it")
    dtype = np.result_type(*(source.dtype for source in sources.values())).name
    return Problem(m=m, n=n, k=k, dtype=dtype, reads_c=getattr(inputs, "beta", 0.0) != 0.0)


def library_options(wanted: JobOptions, settings: Settings) -> Options:
    """Turn a request's options into the library's.

    Memory is what a worker has by default; "auto" is its first accelerator, or else the host: a
    job never touches a device that its worker was not given.
    """
    accelerators = [name for name in settings.devices if name != "host"]
    best = accelerators[0] if accelerators else "host"
    return Options(
        devices=(best,) if wanted.devices == "auto" else tuple(wanted.devices),
        host_memory=settings.memory if wanted.host_memory is None else wanted.host_memory,
        device_memory=wanted.device_memory,
        threads=wanted.threads,
        strategy=wanted.strategy,
        tile=None if wanted.tile is None else (wanted.tile[0], wanted.tile[1], wanted.tile[2]),
        verify=wanted.verify,
    )


def _devices(options: JobOptions) -> tuple[str, ...]:
    return ("auto",) if options.devices == "auto" else tuple(options.devices)


def reserve(
    conn: sa.Connection, admission: Admission, account: Account, settings: Settings
) -> None:
    """Refuse what the other jobs leave no room for; call it in a `Database.queue` transaction.

    Raises
    ------
    ProblemError
        409 for an output that another job will write, 422 for a device nobody has, 429 for too
        many jobs, 507 for too little disk or quota.
    """
    _check_devices(conn, admission, settings)
    _check_counts(conn, account, settings)
    if admission.output is None:
        return
    path = admission.output["path"]
    writers = [
        job.id for job in jobs.outputs_in_flight(conn) if path and job.output["path"] == path
    ]
    if writers:
        raise ProblemError(409, "exists", f"job {writers[0]} will write {path}", job=writers[0])
    folder = Path(path).parent if path else settings.data_dir
    quotas.check_disk(conn, folder, admission.disk_bytes, settings)
    quotas.check_quota(conn, account, admission.disk_bytes)


def _check_devices(conn: sa.Connection, admission: Admission, settings: Settings) -> None:
    known = set(settings.devices) | {"auto"}
    for devices in conn.execute(sa.select(workers.c.devices)).scalars():
        known |= set(devices)
    unknown = sorted(set(admission.devices) - known)
    if unknown:
        raise ProblemError(
            422, "no-such-device", f"no worker has {', '.join(unknown)}", known=sorted(known)
        )


def _check_counts(conn: sa.Connection, account: Account, settings: Settings) -> None:
    for limit, owner, whose in (
        (settings.max_queue, None, "the server's queue holds"),
        (account.max_jobs, account.id, "this token may have"),
    ):
        if limit is not None and jobs.count_unfinished(conn, owner) >= limit:
            raise ProblemError(
                429, "too-many-jobs", f"{whose} at most {limit} unfinished jobs", limit=limit,
                headers={"Retry-After": "30"},
            )  # fmt: skip
