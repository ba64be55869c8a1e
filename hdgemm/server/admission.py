"""Admission control: shapes, plan, memory, disk and quotas are checked before a job is accepted."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.linalg.storage import scratch_folder
from hdgemm.routines.registry import commands
from hdgemm.server import jobs, outputs, paths, quotas
from hdgemm.server.backend import Demand
from hdgemm.server.computations import (
    job_options,
    library_options,
    on_cluster,
    operands_of,
    parameters_of,
    problem_of,
    stores_matrix,
)
from hdgemm.server.jobs import Admission
from hdgemm.server.problems import ProblemError, caused_by, named
from hdgemm.server.references import look_up
from hdgemm.server.tables import WorkerRow
from hdgemm.units import format_size

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from hdgemm.options import Options
    from hdgemm.server.backend import Library, Problem, Source
    from hdgemm.server.database import Database
    from hdgemm.server.models import Common, Output
    from hdgemm.server.settings import Settings
    from hdgemm.server.tables import Process
    from hdgemm.server.tokens import Account

#: Memory of a job whose product a cluster computes: Python, Dask's client and receipts.
_CLIENT_BYTES = 256 << 20


@dataclass(frozen=True)
class Candidate:
    """A product or a routine with checked files and shapes, and its admission but for the plan."""

    problem: Problem
    options: Options
    admission: Admission


class Examiner:
    """Turns a request's inputs into an `Admission`, or says why not."""

    def __init__(self, settings: Settings, database: Database, library: Library) -> None:
        self._settings = settings
        self._database = database
        self._library = library

    def measurement(self, process: Process, inputs: Common) -> Admission:
        """Admit a profile, which takes all memory of its worker, or a run of HPL's benchmark.

        Raises `DoesNotFitError` when no worker has the memory for the benchmark's matrix.
        """
        kept = _kept(inputs)
        devices = (kept["device"],)
        available = self._largest_memory(devices)
        needed = available
        if process == "linpack":
            needed = self._library.linpack_bytes(parameters_of(process, kept))
        if needed > available:
            raise DoesNotFitError(
                f"N = {kept['n']} needs {needed} bytes; the largest worker has {available}, "
                f"{needed - available} are missing; lower N",
                requested=needed,
                available=available,
                missing=needed - available,
            )
        return Admission(process=process, inputs=kept, host_bytes=needed, devices=devices)

    def look_up(self, process: Process, inputs: Any, account: Account) -> Candidate:
        """Check files, shapes and options. Blocks for as long as a file system does.

        Raises `HdgemmError` for errors of the user: shapes, files, memory; `ProblemError` 404 and
        409 for references, 422 for a device that no worker has.
        """
        kept = _kept(inputs)
        wanted = job_options(process, kept)
        options = self._options(process, wanted)
        sources = {}
        for name in operands_of(process):
            if (reference := getattr(inputs, name, None)) is not None:
                with caused_by(name, asked := reference.model_dump()):
                    sources[name] = look_up(self._database, asked, account, self._settings)
        path = None
        if stores_matrix(process):
            with caused_by("output.path", inputs.output.path):
                path = self._output_path(inputs.output, account)
        folder = self._settings.data_dir if path is None else path.parent
        if path is not None:
            _check_files(path, process, kept, sources)
        written = _scratch_folder(process, sources) if path is None else folder
        problem = problem_of(process, kept, sources, folder)
        output, disk = None, 0
        if stores_matrix(process):
            output = {**kept["output"], "path": None if path is None else str(path),
                      "shape": [problem.m, problem.n], "dtype": problem.dtype}  # fmt: skip
            disk = _disk_bytes(problem)
        kept |= {name: dict(source.stored) for name, source in sources.items()}
        admission = Admission(
            process=process, inputs=kept, output=output, disk_bytes=disk, host_bytes=0,
            volume=None if written is None else str(paths.mount_point(written)),
            devices=_devices(wanted),
            reads=frozenset(source.reads for source in sources.values() if source.reads),
        )  # fmt: skip
        return Candidate(problem, options, admission)

    def plan(self, candidate: Candidate, cancel: threading.Event) -> Admission:
        """Plan a computation; setting `cancel` ends the planning.

        Raises `HdgemmError` for a plan that does not fit, and for a cancelled planning.
        """
        demand, found = self._demand(candidate, cancel), candidate.admission
        disk = found.disk_bytes
        if _has_scratch_alone(found.process):
            disk = demand.plan.get("disk_bytes", 0)
        return replace(
            found, plan=demand.plan, units=demand.units, host_bytes=demand.host_bytes,
            disk_bytes=disk,
        )  # fmt: skip

    def _demand(self, candidate: Candidate, cancel: threading.Event) -> Demand:
        """Return what a job takes of its worker's machine: of a cluster's job, its client."""
        problem = candidate.problem
        if not on_cluster(self._settings, problem.process):
            return self._library.plan(problem, candidate.options, cancel)
        extents = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype}
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

    def _options(self, process: Process, wanted: Mapping[str, Any]) -> Options:
        memory = self._largest_memory(_devices(wanted), "options.devices")
        settings = self._settings.model_copy(update={"memory": memory})
        options = library_options(wanted, settings, process)
        asked = options.host_bytes or 0
        if asked > memory and not on_cluster(settings, process):
            raise DoesNotFitError(
                f"options.host_memory is {format_size(asked)}; the largest worker has "
                f"{format_size(memory)}: give less, or leave it out",
                requested=asked,
                available=memory,
                missing=asked - memory,
            )
        return options

    def _output_path(self, wanted: Output, account: Account) -> Path | None:
        if wanted.path is None:
            return None
        path = paths.resolve(wanted.path, account.writable(self._settings.roots), "write")
        if path.suffix != ".npy":
            raise InputError("the name of the result must end in .npy")
        if not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent}")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise InputError(
                f"the service may not write into the folder {path.parent}: name another one, or "
                "leave the file out, and the service keeps the result for download"
            )
        return path


def _disk_bytes(problem: Problem) -> int:
    """Return the bytes of the result's files, and of the scratch file of its routine."""
    routine, elements = commands().get(problem.process), problem.m * problem.n
    itemsize = np.dtype(problem.dtype).itemsize
    if routine is not None:
        shapes = {name: x.shape for name, x in problem.operands.items()}
        extents = routine.extents(shapes, problem.parameters)
        if (result := routine.first(problem.parameters)) is not None:
            elements = math.prod(result.shape(extents, problem.parameters))
        if routine.scratch is not None:
            elements += math.prod(routine.scratch(extents, problem.parameters))
    return elements * itemsize + outputs.HEADER + outputs.companion_bytes(problem)


def _has_scratch_alone(process: str) -> bool:
    """Say whether a routine stores no result, and keeps a scratch file where memory is short."""
    routine = commands().get(process)
    return routine is not None and routine.scratch is not None and not routine.stores


def _scratch_folder(process: str, sources: Mapping[str, Source]) -> Path | None:
    """Return the folder of the scratch file of a routine that stores no result, A's if possible.

    None for the server's own folder, and for a process without such a file.
    """
    a = sources.get("a")
    if not _has_scratch_alone(process) or a is None or a.path is None or a.reads is not None:
        return None
    return scratch_folder(a.path.parent)


def _check_files(
    path: Path, process: Process, kept: Mapping[str, Any], sources: Mapping[str, Source]
) -> None:
    """Refuse results that would replace an input or, unless that is asked for, a file."""
    read = ((name, source.stored.get("path")) for name, source in sources.items())
    with caused_by("output.path", kept["output"]["path"]):
        outputs.refuse_inputs(path, process, kept, read)
        outputs.refuse_existing(path, process, kept, overwrite=kept["output"]["overwrite"])


def _kept(inputs: Common) -> dict[str, Any]:
    """Return the inputs as a job keeps them."""
    return inputs.model_dump(mode="json", exclude={"name", "priority"})


def _devices(options: Mapping[str, Any]) -> tuple[str, ...]:
    return ("auto",) if options["devices"] == "auto" else tuple(options["devices"])


def reserve(
    conn: sa.Connection, admission: Admission, account: Account, settings: Settings
) -> None:
    """Refuse a job that finds no room beside the others; call it in a `Database.queue` transaction.

    Raises `ProblemError` 409 for an output that another job will write, 429 for too many jobs, 507
    for too little disk or quota.
    """
    held = jobs.reserved(conn)
    for limit, count, holder in (
        (settings.max_queue, sum(held.jobs.values()), "the server's queue holds"),
        (account.most_jobs(settings), held.jobs.get(account.id, 0), "this token may have"),
    ):
        if limit is not None and count >= limit:
            raise ProblemError(
                429, "too-many-jobs", f"{holder} at most {limit} unfinished jobs", limit=limit,
                headers={"Retry-After": "30"},
            )  # fmt: skip
    quotas.check_quota(conn, account, admission.disk_bytes)
    if admission.output is None and not admission.disk_bytes:
        return
    path = admission.output_path
    if path is not None:
        writer = outputs.writer_of(conn, admission.process, admission.inputs, Path(path))
        if writer is not None:
            job, file = writer
            what = f"job {job} will write {file}: name another file, or submit when it has ended"
            raise ProblemError(409, "exists", what, job=job)
    folder = Path(path).parent if path else Path(admission.volume or settings.data_dir)
    quotas.check_disk(held, folder, admission.disk_bytes, settings)
