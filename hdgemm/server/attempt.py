"""One attempt at one job, in the job's own process: operands, computation, publication."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import CancelledRunError, HdgemmError, InputError
from hdgemm.routines.registry import commands
from hdgemm.server import outputs, paths, references
from hdgemm.server.backend import Call, JobWatch, Outcome, finite
from hdgemm.server.computations import (
    job_options,
    library_options,
    on_cluster,
    operands_of,
    parameters_of,
)
from hdgemm.server.heartbeat import LeaseLostError
from hdgemm.server.permissions import give_mode
from hdgemm.server.publication import (
    CHUNK,
    JOURNAL,
    Publication,
    count_pictures,
    described,
    digest,
    kept_within_quota,
    open_finished,
    publish,
    remove_leftovers,
    remove_links,
    temporary_name,
)
from hdgemm.server.references import OperandFiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import sqlalchemy as sa

    from hdgemm.server.backend import Library
    from hdgemm.server.database import Database
    from hdgemm.server.heartbeat import Heartbeat
    from hdgemm.server.settings import Settings
    from hdgemm.server.tables import Job

log = logging.getLogger(__name__)
#: The phase in which a job of a process computes; of the others, of routines, "computing".
_PHASES: Final = {"gemm": "multiplying", "verify": "verifying", "profile": "profiling"}
#: Speed in flop/s that tells a long job where its plan has no expectation.
_ASSUMED_FLOPS: Final = 1e11


class Attempt:
    """Computes one claimed job and publishes its result; every write names the attempt's fence."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        library: Library,
        job: Job,
        heartbeat: Heartbeat,
    ) -> None:
        self._settings = settings
        self._database = database
        self._library = library
        self._job = job
        self._heartbeat = heartbeat
        self._folder = settings.job_dir(job.id)
        self._roots = (*settings.roots, self._folder)
        self._journal = self._folder / JOURNAL
        self._cluster = on_cluster(settings, job.process)
        self._files = OperandFiles(settings, database, self._folder, shared=bool(self._cluster))

    def run(self) -> None:
        """Compute, publish and note the result.

        Raises `HdgemmError` where the library or a file refuses (the job is not finished then),
        `LeaseLostError` when another attempt took the job over.
        """
        if self._job.publication is not None and self._finish_publication():
            return
        process, inputs = self._job.process, self._job.inputs
        options = library_options(job_options(process, inputs), self._settings, process)
        watch = JobWatch(
            self._heartbeat.note, self._heartbeat.cancel, self._heartbeat.operations.add
        )
        with self._files.named_for_user(), ExitStack() as stack:
            if "a" in inputs:
                self._enter("opening")
            call = self._open(stack)
            self._enter(_PHASES.get(process, "computing"))
            compute = partial(self._library.run, call, options, watch)
            outcome = self._compute(call, compute)
            self._refuse_wrong(outcome)
            if self._job.output is None:
                self._succeed(outcome, None)
            else:
                self._publish(call.out, outcome)

    def _refuse_wrong(self, outcome: Outcome) -> None:
        """Raise when the check of a product, or a product's own check, found C wrong.

        The job keeps the report, which names the rows that fail. C is an input of a check.
        """
        checked = self._job.process == "verify"
        found = outcome.report if checked else outcome.report.get("verification")
        if not found or found.get("passed", True):
            return
        self._note(report=finite(outcome.report))
        summary = found.get("summary", "C is not the product")
        if checked:
            raise InputError(summary)
        raise HdgemmError(f"{summary}; the result is not published")

    def _compute(self, call: Call, compute: Callable[[], Outcome]) -> Outcome:
        """Compute the result; continue an earlier attempt's where its journal allows that."""
        if call.journal is None or not call.journal.exists():
            return compute()
        self._wait_for_journal(call.journal)
        try:
            return compute()
        except InputError as error:
            # An input, the device or the memory limit is another one than in that attempt.
            log.warning("beginning again: %s", error)
        call.journal.unlink(missing_ok=True)
        folder = os.open(call.out.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            remove_leftovers(self._job.id, folder)
        finally:
            os.close(folder)
        return compute()

    def _wait_for_journal(self, journal: Path) -> None:
        """Wait until an earlier attempt, which ends with its lease, has closed the journal."""
        until = time.monotonic() + self._settings.lease_seconds
        with journal.open("rb") as stream:
            while time.monotonic() < until and not self._heartbeat.cancel.is_set():
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(0.1)
                else:
                    return

    @property
    def _durable(self) -> bool:
        """Whether the job has a journal: on a cluster, of a long product, of a durable routine."""
        if self._cluster:
            return True
        if self._job.output is None:
            return False
        if self._job.process in commands():
            return commands()[self._job.process].durable
        plan = self._job.plan or {}
        expected = plan.get("expected_seconds")
        if expected is None:
            expected = 2.0 * plan.get("m", 0) * plan.get("n", 0) * plan.get("k", 0) / _ASSUMED_FLOPS
        reads_product = self._job.inputs.get("alpha") != 0 and plan.get("k") != 0
        return reads_product and expected >= self._settings.journal_seconds

    def _open(self, stack: ExitStack) -> Call:
        inputs, out = self._job.inputs, self._folder
        operands = {
            name: self._files.open(stack, name, inputs[name])
            for name in operands_of(self._job.process)
            if inputs.get(name) is not None
        }
        if self._job.output is not None:
            out = self._begin_output(stack)
        elif self._job.process == "profile":
            out = self._folder / "profiling"
            shutil.rmtree(out, ignore_errors=True)  # left by a killed attempt
            out.mkdir()
            stack.callback(shutil.rmtree, out, ignore_errors=True)
        return Call(
            process=self._job.process, operands=operands, out=out,
            parameters=parameters_of(self._job.process, inputs), cluster=self._cluster,
            journal=self._journal if self._durable else None,
        )  # fmt: skip

    def _target(self) -> Path:
        output = self._job.output
        if output is None:
            raise HdgemmError(f"job {self._job.id} has no output")
        return references.result_path(self._job.id, output, self._settings)

    def _begin_output(self, stack: ExitStack) -> Path:
        target = self._target()
        flags = os.O_RDONLY | os.O_DIRECTORY
        folder = stack.enter_context(paths.opened(target.parent, self._roots, flags))
        remove_leftovers(self._job.id, folder, keep_journaled=self._journal.exists())
        fence = None if self._durable else self._job.fence
        out = self._files.name("out", folder) / temporary_name(target, self._job.id, fence)
        kept = (self._job.output or {})["path"] is None
        self._files.show_output(out, target, "the result" if kept else str(target))
        return out

    def _publish(self, out: Path, outcome: Outcome) -> None:
        self._enter("hashing")
        if (self._job.output or {})["path"] is not None:
            beside = outputs.files_beside(self._job.process, self._job.inputs, out)
            give_mode((out, *beside), 0o666 & ~self._settings.umask)
        target, output = self._target(), self._job.output or {}
        with open_finished(out) as stream:
            about = described(stream, out, target)
            sha256 = self._hash(stream.fileno(), about["size"])
        publication = Publication(
            **about,
            sha256=sha256,
            overwrite=output["overwrite"] or output["path"] is None,
            beside=self._describe_beside(out, target),
        )
        self._note(publication=asdict(publication), report=finite(outcome.report))
        self._enter("publishing")
        publish(publication, self._roots)
        self._succeed(outcome, publication)

    def _hash(self, fd: int, size: int) -> str:
        sha256 = ""
        for number, part in enumerate(digest(fd)):
            self._heartbeat.note(
                {"percent": 100.0, "phase": "hashing",
                 "phase_percent": min(100.0, 100.0 * number * CHUNK / max(1, size))}
            )  # fmt: skip
            if self._heartbeat.cancel.is_set():
                raise CancelledRunError("cancelled before the result was published")
            sha256 = part or ""
        return sha256

    def _describe_beside(self, out: Path, target: Path) -> list[dict[str, Any]]:
        """Describe the files that the library stored beside the result."""
        process, inputs = self._job.process, self._job.inputs
        found = []
        for temporary, path in zip(
            outputs.files_beside(process, inputs, out),
            outputs.files_beside(process, inputs, target),
            strict=True,
        ):
            if temporary.exists():
                with open_finished(temporary) as stream:
                    found.append(described(stream, temporary, path))
        return found

    def _finish_publication(self) -> bool:
        self._enter("publishing")
        publication = Publication(**(self._job.publication or {}))
        if not publish(publication, self._roots):
            self._note(publication=None, report=None)
            return False
        log.info("the result was computed before; its publication is finished now")
        self._succeed(Outcome(self._job.report or {}), publication)
        return True

    def _succeed(self, outcome: Outcome, publication: Publication | None) -> None:
        """End the job, then draw its pictures, for which nobody waits.

        The page of a profile is its result, and is drawn before the job ends.
        """
        output: dict[str, Any] | None = self._job.output
        if publication is not None and output is not None:
            output = {
                **output, "size": publication.size, "sha256": publication.sha256,
                "inode": publication.inode, "mtime_ns": publication.mtime_ns,
                "beside": publication.beside,
            }  # fmt: skip
        drawn = self._job.process == "profile"
        if drawn:
            self._enter("drawing")
            self._draw(outcome)
        self._heartbeat.finish(
            "successful", "done", self._keep, report=finite(outcome.report), output=output,
            worker=None if drawn else self._job.worker,
        )  # fmt: skip
        self._journal.unlink(missing_ok=True)
        remove_links(self._job.id, self._settings)
        if not drawn:
            self._draw(outcome)
            about = self._database, self._job.id, self._settings
            self._heartbeat.outlast(partial(count_pictures, *about))

    def _draw(self, outcome: Outcome) -> None:
        """Draw trace and picture; a result is kept without them."""
        log.info("drawing")
        try:
            outcome.draw(self._folder)
        except (HdgemmError, OSError, ValueError) as error:
            log.warning("no trace or picture: %s", error)

    def _keep(self, conn: sa.Connection) -> int:
        return kept_within_quota(conn, self._job, self._settings)

    def _enter(self, phase: str) -> None:
        log.info("%s", phase)
        if not self._heartbeat.enter(phase):
            raise LeaseLostError

    def _note(self, **values: Any) -> None:
        def store() -> bool:
            with self._database.write() as conn:
                return self._heartbeat.held.update(conn, self._database.now(conn), **values)

        if not self._heartbeat.outlast(store):
            raise LeaseLostError
