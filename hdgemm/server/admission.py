"""Admission control: shapes, plan, memory, disk and quotas are checked before a job is accepted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.server import jobs, paths, quotas
from hdgemm.server.backend import Demand, LinpackCall, Problem
from hdgemm.server.computations import (
    job_options,
    library_options,
    on_cluster,
    product_of,
    routine_of,
)
from hdgemm.server.jobs import Admission
from hdgemm.server.models import (
    GemmInputs,
    JobOptions,
    LinalgInputs,
    LinpackInputs,
    ProfileInputs,
    VerifyInputs,
)
from hdgemm.server.problems import ProblemError, caused_by, named
from hdgemm.server.publication import COMPANIONS
from hdgemm.server.references import Source, look_up
from hdgemm.server.tables import WorkerRow

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from hdgemm.options import Options
    from hdgemm.server.backend import Library, RoutineProblem
    from hdgemm.server.database import Database
    from hdgemm.server.models import Output
    from hdgemm.server.settings import Settings
    from hdgemm.server.tables import Process
    from hdgemm.server.tokens import Account

Inputs = GemmInputs | VerifyInputs | ProfileInputs | LinpackInputs | LinalgInputs
#: Room for a result's header.
_HEADER = 4096
#: Memory of a job whose product a cluster computes: Python, Dask's client and receipts.
_CLIENT_BYTES = 256 << 20


@dataclass(frozen=True)
class Candidate:
    """A product or a routine with checked files and shapes, before it is planned."""

    process: Process
    inputs: GemmInputs | VerifyInputs | LinalgInputs
    sources: Mapping[str, Source]
    problem: Problem | RoutineProblem
    options: Options
    output: dict[str, Any] | None
    volume: str | None


class Examiner:
    """Turns a request's inputs into an `Admission`, or says why not."""

    def __init__(self, settings: Settings, database: Database, library: Library) -> None:
        self._settings = settings
        self._database = database
        self._library = library

    def profile(self, inputs: ProfileInputs) -> Admission:
        """Admit a profile, which takes all memory of the largest worker with its device."""
        return Admission(
            process="profile", inputs=_kept(inputs),
            host_bytes=self._largest_memory((inputs.device,)), devices=(inputs.device,),
        )  # fmt: skip

    def linpack(self, inputs: LinpackInputs) -> Admission:
        """Admit a run of HPL's benchmark, whose matrix lies in memory.

        Raises
        ------
        DoesNotFitError
            When no worker has the memory.
        """
        needed = self._library.linpack_bytes(LinpackCall.of(_kept(inputs)))
        available = self._largest_memory((inputs.device,))
        if needed > available:
            raise DoesNotFitError(
                f"N = {inputs.n} needs {needed} bytes; the largest worker has {available}, "
                f"{needed - available} are missing; lower N",
                requested=needed, available=available, missing=needed - available,
            )  # fmt: skip
        return Admission(
            process="linpack", inputs=_kept(inputs), host_bytes=needed, devices=(inputs.device,)
        )

    def look_up(
        self, process: Process, inputs: GemmInputs | VerifyInputs | LinalgInputs, account: Account
    ) -> Candidate:
        """Check files, shapes and options. Blocks for as long as a file system does.

        Raises
        ------
        HdgemmError
            What the user can mend: shapes, files, memory.
        ProblemError
            404 and 409 for references, 422 for a device that no worker has.
        """
        options = self._options(process, job_options(inputs))
        sources = {}
        for name in ("a", "b", "c"):
            if (reference := getattr(inputs, name, None)) is not None:
                with caused_by(name, reference.model_dump()):
                    sources[name] = look_up(self._database, reference, account, self._settings)
        path = None
        if not isinstance(inputs, VerifyInputs):
            with caused_by("output.path", inputs.output.path):
                path = self._output_path(inputs.output, sources, account)
        folder = self._settings.data_dir if path is None else path.parent
        problem: Problem | RoutineProblem
        if isinstance(inputs, LinalgInputs):
            self._refuse_companions(path, overwrite=inputs.output.overwrite)
            problem = routine_of(process, inputs, sources, folder)
        else:
            problem = product_of(inputs, sources, folder)
        if isinstance(inputs, VerifyInputs):
            return Candidate(process, inputs, sources, problem, options, None, None)
        output = {
            **inputs.output.model_dump(), "path": None if path is None else str(path),
            "shape": [problem.m, problem.n], "dtype": problem.dtype,
        }  # fmt: skip
        volume = None if path is None else str(paths.mount_point(folder))
        return Candidate(process, inputs, sources, problem, options, output, volume)

    def plan(self, candidate: Candidate, cancel: threading.Event) -> Admission:
        """Plan a product; setting `cancel` ends the planning.

        Raises
        ------
        HdgemmError
            What does not fit, and a cancelled planning.
        """
        inputs, problem = candidate.inputs, candidate.problem
        demand = self._demand(candidate, cancel)
        sources = candidate.sources.items()
        itemsize = np.dtype(problem.dtype).itemsize
        disk = 0 if candidate.output is None else problem.m * problem.n * itemsize + _HEADER
        if candidate.process == "solve":  # the factors go to a scratch file
            rows, cols = candidate.sources["a"].shape
            disk += rows * cols * itemsize
        return Admission(
            process=candidate.process,
            inputs={**_kept(inputs), **{name: dict(source.stored) for name, source in sources}},
            plan=demand.plan, units=demand.units, output=candidate.output,
            volume=candidate.volume, host_bytes=demand.host_bytes, disk_bytes=disk,
            devices=_devices(job_options(inputs)),
            reads=frozenset(source.reads for _, source in sources if source.reads),
        )  # fmt: skip

    def _demand(self, candidate: Candidate, cancel: threading.Event) -> Demand:
        """Return what a job takes of its worker's machine: of a cluster's job, its client."""
        product = candidate.problem
        if not isinstance(product, Problem) or not on_cluster(self._settings, candidate.process):
            return self._library.plan(product, candidate.options, cancel)
        extents = {"m": product.m, "n": product.n, "k": product.k, "dtype": product.dtype}
        return Demand(_CLIENT_BYTES, {**extents, "strategy": "cluster"})

    def _largest_memory(self, devices: tuple[str, ...], field: str = "device") -> int:
        """Return the memory of the largest worker; refuse devices that no worker has."""
        with self._database.read() as conn:
            known = {"auto", *self._settings.devices}
            known.update(*conn.execute(sa.select(WorkerRow.devices)).scalars())
            if unknown := sorted(set(devices) - known):
                what = (
                    f"{field} names {', '.join(unknown)}, which no worker has;"
                    f" allowed are {', '.join(sorted(known))}"
                )
                raise ProblemError(
                    422, "no-such-device", what, known=sorted(known), errors=[named(field, what)]
                )
            return quotas.largest_memory(conn, devices, self._settings)

    def _options(self, process: Process, wanted: JobOptions) -> Options:
        memory = self._largest_memory(_devices(wanted), "options.devices")
        settings = self._settings.model_copy(update={"memory": memory})
        options = library_options(wanted, settings, process)
        asked = options.host_bytes or 0
        if asked > memory and not on_cluster(settings, process):
            raise DoesNotFitError(
                f"options.host_memory asks for {asked} bytes; the largest worker has {memory}",
                requested=asked, available=memory, missing=asked - memory,
            )  # fmt: skip
        return options

    def _refuse_companions(self, path: Path | None, *, overwrite: bool) -> None:
        """Refuse to replace files that a factorisation stores beside its result."""
        if path is None or overwrite:
            return
        for suffix in COMPANIONS:
            if (other := path.with_suffix(suffix)).exists():
                raise ProblemError(
                    409,
                    "exists",
                    f"{other} exists; set output.overwrite (--overwrite) to replace it",
                )

    def _output_path(
        self, wanted: Output, sources: Mapping[str, Source], account: Account
    ) -> Path | None:
        if wanted.path is None:
            return None
        path = paths.resolve(wanted.path, account.writable(self._settings.roots), "write")
        if path.suffix != ".npy":
            raise InputError("the name of the result must end in .npy")
        if not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent}")
        if any(
            source.stored.get("path") == str(path)
            for name, source in sources.items()
            if name != "c"
        ):
            raise InputError("this file is an input of the same job")
        if path.exists() and not (wanted.overwrite and path.is_file()):
            raise ProblemError(
                409, "exists", f"{path} exists; set output.overwrite (--overwrite) to replace it"
            )
        return path


def _kept(inputs: Inputs) -> dict[str, Any]:
    return inputs.model_dump(mode="json", exclude={"name", "priority"})


def _devices(options: JobOptions) -> tuple[str, ...]:
    return ("auto",) if options.devices == "auto" else tuple(options.devices)


def check_priority(account: Account, priority: int) -> None:
    """Refuse a priority above the token's.

    Raises
    ------
    ProblemError
        403 for such a priority.
    """
    if account.max_priority is not None and priority > account.max_priority:
        raise ProblemError(
            403, "priority-too-high",
            f"priority {priority} is above {account.max_priority}, the highest for this token",
            requested=priority, limit=account.max_priority,
        )  # fmt: skip


def reserve(
    conn: sa.Connection, admission: Admission, account: Account, settings: Settings
) -> None:
    """Refuse a job that finds no room beside the others; call it in a `Database.queue` transaction.

    Raises
    ------
    ProblemError
        409 for an output that another job will write, 429 for too many jobs, 507 for too little
        disk or quota.
    """
    held = jobs.reserved(conn)
    for limit, count, holder in (
        (settings.max_queue, sum(held.jobs.values()), "the server's queue holds"),
        (account.max_jobs, held.jobs.get(account.id, 0), "this token may have"),
    ):
        if limit is not None and count >= limit:
            raise ProblemError(
                429, "too-many-jobs", f"{holder} at most {limit} unfinished jobs", limit=limit,
                headers={"Retry-After": "30"},
            )  # fmt: skip
    if admission.output is None:
        return
    path = admission.output_path
    writer = None if path is None else jobs.writer_of(conn, path)
    if writer is not None:
        raise ProblemError(409, "exists", f"job {writer} will write {path}", job=writer)
    folder = Path(path).parent if path else settings.data_dir
    quotas.check_disk(held, folder, admission.disk_bytes, settings)
    quotas.check_quota(conn, account, admission.disk_bytes)
