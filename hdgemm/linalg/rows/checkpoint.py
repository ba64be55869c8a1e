"""Durable passes over rows: what each core has reduced is recorded beside the output.

The journal has the command, the plan of the first pass and the limits of the run. Each core
replaces its own file with the arrays that its blocks of rows are reduced to, and the number of
blocks, from time to time; later blocks are reduced again. The result of a pass replaces the files
of its cores. A run that goes on makes the same passes in the same order: finished ones take their
recorded results and read nothing. Rows that a pass stores are durable before they are recorded,
with a checksum for each block: where one differs, the pass begins again. A reducer needs no journal
of its own::

    with durable_rows(call, out, {"A": a}, {"routine": "svd"}) as durable:
        if durable is not None:
            durable.begin(plan)                 # or goes on with `durable.plan`
        durable.next_pass(plan)
        if (arrays := durable.finished()) is None:
            ...                                 # in the thread of each core:
            done, arrays = durable.load(core)   # (0, {}) at the start
            for number in range(done, blocks):
                ...                             # reduces a block to small arrays
                durable.note(core, number + 1, lambda: arrays)
            durable.finish(arrays)              # of all cores
"""

from __future__ import annotations

import os
import time
import zipfile
import zlib
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

from hdgemm.call.operands import open_matrix
from hdgemm.durable.earlier_run import BEGIN_AGAIN, EarlierRun
from hdgemm.durable.identity import Identity
from hdgemm.durable.place import ResultPlace
from hdgemm.durable.run import JournaledRun
from hdgemm.errors import InputError, MatrixIOError
from hdgemm.linalg.planning.rows import RowPlan
from hdgemm.machine.limits import cores, host_bytes
from hdgemm.matrices.companions import CompanionFiles
from hdgemm.matrices.files import PARSING, open_regular
from hdgemm.matrices.location import Location, parse_location
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.product.target import is_location
from hdgemm.report import Resumption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Call
    from hdgemm.call.run import OpenRun
    from hdgemm.durable.place import Checkpointing
    from hdgemm.linalg._checkpoint import Command
    from hdgemm.linalg.rows._row_checks import RowChecks
    from hdgemm.matrices.draft import Draft

#: Minimum interval between two records, in units of the last record's duration.
_INTERVAL: Final = 20.0
#: Name of the count of reduced blocks, beside the arrays of a core.
_DONE: Final = "done"
#: Name of the extents of a plan, beside the arrays of a core or a pass.
_BLOCKS: Final = "blocks"
#: Name of the checksums of the rows that a core has stored, beside its arrays.
_CHECKSUMS: Final = "checksums"
#: Names of the plan of the first pass and of the limits of the run in the journal.
_PLAN: Final = "rows"
_LIMITS: Final = "limits"


@dataclass(slots=True)
class _Recorded:
    """When a core recorded its arrays last, and how long that took."""

    at: float
    took: float = 0.0


def durable_rows(
    call: Call | Command, out: Any, matrices: Mapping[str, StoredMatrix], facts: Mapping[str, Any]
) -> AbstractContextManager[RowCheckpoint | None]:
    """Return the durable run that a call asks for; takes the parameters of `RowCheckpoint`."""
    if call.checkpoint is False:
        return nullcontext()
    return RowCheckpoint(call.checkpoint, out, matrices, facts, restart=call.restart)


class RunLimits(NamedTuple):
    """What decides the plans of all passes of a run, and with them the bits of its result.

    Parameters
    ----------
    host_memory, threads
        Bytes, and cores that a pass may use.
    block
        Columns of a block of a Krylov iteration; None for other runs.
    devices, device_memory
        As in `Options`.
    """

    host_memory: int
    threads: int
    block: int | None = None
    devices: str | Sequence[str] = "auto"
    device_memory: float | str | None = None

    @classmethod
    def of(cls, run: OpenRun, block: int | None = None) -> Self:
        """Return the limits of a run."""
        options = run.options
        return cls(
            host_bytes(options),
            options.threads or cores(),
            block,
            options.devices,
            options.device_memory,
        )

    def applied(self, run: OpenRun) -> OpenRun:
        """Return a run with these limits."""
        options = replace(
            run.options,
            host_memory=self.host_memory,
            threads=self.threads,
            devices=self.devices,
            device_memory=self.device_memory,
        )
        return run._replace(options=options)


def recorded_rows(call: Call, out: Any) -> RowPlan | None:
    """Return the plan of the earlier run that a durable call goes on with; None without one."""
    found = _recorded_plan(call, out)
    return None if found is None else RowPlan(**found[_PLAN])


def resumed(call: Call, out: Any, run: OpenRun) -> tuple[OpenRun, RunLimits | None]:
    """Return a run under the limits of the earlier one that it goes on with, and these limits.

    A run that goes on with none is returned as it is, with None.
    """
    found = _recorded_plan(call, out)
    if found is None or _LIMITS not in found:
        return run, None
    limits = RunLimits(**found[_LIMITS])
    return limits.applied(run), limits


def _recorded_plan(call: Call, out: Any) -> Mapping[str, Any] | None:
    if call.checkpoint is False or call.restart:
        return None
    path = _place(out).journal_at(call.checkpoint)
    earlier = EarlierRun.at(path)
    return None if earlier is None else _plan_of(path, earlier)


def _plan_of(path: Path, earlier: EarlierRun) -> Mapping[str, Any]:
    if not isinstance(earlier.plan, dict) or _PLAN not in earlier.plan:
        raise earlier.of_other_kind(path)
    return earlier.plan


def place_of(outs: Sequence[Any]) -> Any:
    """Return the first location among the places of results, beside which a journal is kept."""
    return next((out for out in outs if is_location(out)), None)


def place_of_journal(checkpoint: Checkpointing) -> Path | None:
    """Return the name that a run without a stored result has beside its journal.

    Raises
    ------
    InputError
        When `checkpoint` names no journal.
    """
    if checkpoint is False:
        return None
    if checkpoint is True:
        raise InputError("no result is stored: give checkpoint the path of a journal, not True")
    path = Path(checkpoint).absolute()
    return path.with_name(f"{path.name}.npy")


def checksum_of(weights: Any) -> int | None:
    """Return the checksum of weights, for a journal; None where there are none."""
    return None if weights is None else zlib.crc32(np.asarray(weights, np.float64).tobytes())


def _place(out: Any) -> ResultPlace:
    if not is_location(out):
        raise InputError("checkpoint needs a result in a file: give out as a path")
    return ResultPlace(parse_location(out), (0, 0), np.dtype("float64"))


class RowCheckpoint(JournaledRun):
    """Reductions of rows that an interrupted run can resume; a context manager.

    Parameters
    ----------
    checkpoint
        True for a journal beside `out`, or its path.
    out
        The location of the result.
    matrices
        What is reduced, by name.
    facts
        The routine, and what else decides the result, as plain values.
    restart
        Discard what an earlier run left.

    Attributes
    ----------
    plan
        Plan of the first pass of the earlier run; None without one.

    Raises
    ------
    InputError
        When the journal belongs to another command, or another run holds it.
    """

    def __init__(
        self,
        checkpoint: Checkpointing,
        out: Any,
        matrices: Mapping[str, StoredMatrix],
        facts: Mapping[str, Any],
        *,
        restart: bool,
    ) -> None:
        self._recorded: dict[int, _Recorded] = {}
        self._stored: Mapping[int, RowChecks] = {}
        self._drafts: list[ResultPlace] = []
        self.plan: RowPlan | None = None
        self._pass, self._blocks = -1, np.zeros(2, np.int64)
        place = _place(out)
        inputs = {name: each.operand for name, each in matrices.items()}
        identity = Identity.of(facts["routine"], facts, inputs, place)
        super().__init__(identity, place, checkpoint, restart=restart)

    def _open(self) -> None:
        if self.earlier is not None:
            self.plan = RowPlan(**_plan_of(self.path, self.earlier)[_PLAN])

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Remove a run that succeeded; else as other runs."""
        try:
            if error is None:
                self.discard()
        finally:
            super().__exit__(kind, error, trace)

    def close(self) -> None:
        """Close the journal; without records, drafts are removed."""
        try:
            if self._journal.empty:
                for place in self._drafts:
                    place.remove(self.path)
        finally:
            super().close()

    @property
    def _keeps_parts(self) -> bool:
        return bool(self.place.work_files())

    @contextmanager
    def growing(self, place: ResultPlace) -> Iterator[StoredMatrix]:
        """Yield a result whose rows an interrupted run keeps; it is published at the end."""
        self._drafts.append(place)
        draft = self._draft(place)
        if draft is None:
            with open_matrix(place.where) as published:
                yield published
            return
        try:
            yield StoredMatrix(draft.operand, writable=True)
        except BaseException:
            draft.matrix.close()
            raise
        self._journal.append([{"publishing": draft.part.name}])
        draft.publish()

    @contextmanager
    def scratch(self, like: StoredMatrix) -> Iterator[StoredMatrix]:
        """Yield a matrix beside the result, of some shape and dtype, for rows that lead to it.

        It is kept for a run that goes on, and removed with the records of the run.
        """
        where = Location(self.place.work(f".scratch{self._pass + 1}.npy"))
        place = ResultPlace.aside(where, like.shape, like.dtype.newbyteorder("="))
        draft = self._draft(place) or place.create(self.path)
        try:
            yield StoredMatrix(draft.operand, writable=True)
        finally:
            draft.matrix.close()

    def _draft(self, place: ResultPlace) -> Draft[Any] | None:
        """Return the draft that an earlier run left, or a new one; None where it was published."""
        if self.earlier is not None:
            try:
                draft = place.reopen(self.path)
            except (InputError, MatrixIOError):  # a crash has left a part of it
                draft = None
            if draft is not None and draft.operand.shape == place.shape:
                return draft
            if draft is not None:
                draft.discard()
            elif self.earlier.publishing and place.path.exists():
                return None
        place.remove(self.path)
        return place.create(self.path)

    def begin(self, plan: RowPlan, limits: RunLimits | None = None) -> None:
        """Record the plan and the limits of a new run; one that goes on has the earlier run's."""
        if self.plan is None:
            self.place.remove_work()
            self.plan = plan
        found: dict[str, Any] = {_PLAN: self.plan._asdict()}
        self.start(found if limits is None else found | {_LIMITS: limits._asdict()})

    def keep(self, make: Callable[[], Sequence[NDArray[Any]]]) -> Sequence[NDArray[Any]]:
        """Return the arrays that an earlier run recorded before its next pass, else record some.

        What a pass multiplies by must be the same array for all blocks, whatever the rounding
        errors of the dense problems that it comes from.
        """
        path = self.place.work(f".start{self._pass + 1}.npz")
        found = _read(path)
        if found is None or "0" not in found:
            found = {str(number): array for number, array in enumerate(make())}
            _write(path, found)
        return [found[str(number)] for number in range(len(found))]

    def next_pass(self, plan: RowPlan, stored: Mapping[int, RowChecks]) -> None:
        """Begin the next pass: what follows is recorded and found by its number.

        Parameters
        ----------
        stored
            Of a pass that stores rows, the checksums of each core.
        """
        self._pass += 1
        # Sums on a device differ from the host's in their last bits.
        names = [zlib.crc32(name.encode()) for name in plan.devices]
        self._blocks = np.array([plan.rows, plan.cores, *names])
        self._stored = stored
        self._recorded.clear()

    def finished(self) -> Mapping[str, NDArray[Any]] | None:
        """Return the result of this pass in an earlier run; None where it had not ended.

        Raises
        ------
        InputError
            When rows have changed in a result that was published.
        """
        arrays = self._read_pass(self._result_path)
        if arrays is None:
            return None
        nothing = np.empty(0, np.int64)
        found = [arrays.pop(f"{_CHECKSUMS}{core}", nothing) for core in self._stored]
        for checks, checksums in zip(self._stored.values(), found, strict=True):
            if len(checksums) != len(checks.places) or not checks.restore(checksums):
                self._check_writable(checks)
                return None
        return arrays

    def _check_writable(self, checks: RowChecks) -> None:
        """Raise `InputError` where rows that have changed lie in a published result."""
        if not checks.target.writable:
            name = checks.target.operand.matrix.name
            raise InputError(f"{name} was published, and has changed since; {BEGIN_AGAIN}")

    def finish(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Record the result of this pass; the records of its cores go."""
        checksums = {f"{_CHECKSUMS}{core}": np.array(x.found) for core, x in self._stored.items()}
        self._make_rows_durable()
        _write(self._result_path, {**arrays, **checksums, _BLOCKS: self._blocks})
        for core in self._recorded:
            self._path(core).unlink(missing_ok=True)

    def load(self, core: int) -> tuple[int, Mapping[str, NDArray[Any]]]:
        """Return how many blocks a core has reduced, and its arrays by name: (0, {}) without any.

        A damaged record counts as none, and so does one of rows that have changed: the blocks are
        reduced again.
        """
        self._recorded[core] = _Recorded(time.monotonic())
        arrays, checks = self._read_pass(self._path(core)), self._stored.get(core)
        if arrays is None or _DONE not in arrays:
            return 0, {}
        done, checksums = int(arrays.pop(_DONE)), arrays.pop(_CHECKSUMS, np.empty(0, np.int64))
        if checks is not None and not (len(checksums) == done and checks.restore(checksums)):
            return 0, {}
        return done, arrays

    def note(self, core: int, done: int, arrays: Callable[[], Mapping[str, NDArray[Any]]]) -> None:
        """Record a core's arrays by name, where the last record was long enough ago."""
        recorded = self._recorded[core]
        now = time.monotonic()
        if now - recorded.at < _INTERVAL * recorded.took:
            return
        found = {**arrays(), _DONE: np.array(done), _BLOCKS: self._blocks}
        if core in self._stored:
            found[_CHECKSUMS] = np.array(self._stored[core].found)
        self._make_rows_durable()
        _write(self._path(core), found)
        self._recorded[core] = _Recorded(time.monotonic(), time.monotonic() - now)

    def _make_rows_durable(self) -> None:
        """Write the rows that are stored through to the disk, before they are recorded."""
        for checks in self._stored.values():
            checks.target.flush()
            return  # the target of all cores

    def _read_pass(self, path: Path) -> dict[str, NDArray[Any]] | None:
        """Return the arrays of a record of this pass; None where another plan made them."""
        found = _read(path)
        if found is None or not np.array_equal(found.pop(_BLOCKS, ()), self._blocks):
            return None
        return found

    def _path(self, core: int) -> Path:
        return self.place.work(f".rows{self._pass}-{core}.npz")

    @property
    def _result_path(self) -> Path:
        return self.place.work(f".pass{self._pass}.npz")

    def resumption(self, blocks: int, kept: int) -> Resumption:
        """Return how many of the blocks of rows of a pass an earlier run had reduced."""
        return Resumption(str(self.path), blocks, kept)


def _write(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Replace a file of arrays."""
    with CompanionFiles() as files:
        files.add(path, lambda stream: np.savez(stream, **arrays))  # type: ignore[arg-type]


def _read(path: Path) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of a file; None where it is missing or damaged."""
    if not path.exists():
        return None
    try:
        # The cores of a pass read their records at once.
        with PARSING, os.fdopen(open_regular(path), "rb") as stream, np.load(stream) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error):
        return None
