"""A durable pass over rows: what each core has reduced is recorded beside the output.

The journal has the command and the plan. Each core replaces its own file with the arrays that its
blocks of rows are reduced to, and the number of blocks, from time to time; later blocks are reduced
again.
"""

from __future__ import annotations

import time
import zipfile
import zlib
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from hdgemm.durable.destination import Destination as DurablePlace
from hdgemm.durable.fingerprint import changed_fields, differences, fingerprint
from hdgemm.durable.journal import read_journal
from hdgemm.durable.previous_run import say_kept
from hdgemm.errors import InputError
from hdgemm.linalg.planning.rows import RowPlan
from hdgemm.linalg.slab_journal import refuse
from hdgemm.matrices.companions import CompanionFiles
from hdgemm.matrices.location import parse_location
from hdgemm.product.target import is_location
from hdgemm.report import Resumption

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Call
    from hdgemm.durable.run import Checkpointing
    from hdgemm.linalg.slab_journal import Command
    from hdgemm.matrices.stored import StoredMatrix

#: Minimum interval between two records, in units of the last record's duration.
_INTERVAL: Final = 20.0
_FORMAT: Final = 2
#: Name of the count of reduced blocks, beside the arrays of a core.
_DONE: Final = "done"


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


def recorded_rows(call: Call, out: Any) -> RowPlan | None:
    """Return the plan of the earlier run that a durable call goes on with; None without one."""
    if call.checkpoint is False or call.restart:
        return None
    path = _place(out).journal_at(call.checkpoint)
    records = read_journal(path)[0] if path.is_file() else ()
    return RowPlan(**_begun(path, records)["plan"]) if records else None


def _place(out: Any) -> DurablePlace:
    if not is_location(out):
        raise InputError("checkpoint needs a result in a file: give out as a path")
    return DurablePlace(parse_location(out), (0, 0), np.dtype("float64"))


def _begun(path: Path, records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the first record of a journal of a reduction of rows."""
    begun: Mapping[str, Any] | None = records[0].get("rows")
    if begun is None:
        raise InputError(f"{path} is no journal of a reduction of rows")
    return begun


class RowCheckpoint:
    """A reduction of rows that an interrupted run can resume; a context manager.

    Parameters
    ----------
    checkpoint
        True for a journal beside `out`, or its path.
    out
        The location of the result.
    matrices
        What is reduced, by name.
    facts
        What else decides the result, as plain values.
    restart
        Discard what an earlier run left.

    Attributes
    ----------
    plan
        That of the earlier run; None without one.
    kept
        Blocks of rows that were reduced already.

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
        place = _place(out)
        path = place.journal_at(checkpoint)
        self._place, self._journal = place, place.open_journal(path)
        self._matrices = {name: fingerprint(each.operand) for name, each in matrices.items()}
        self._facts = {"format": _FORMAT, "name": place.path.name, **facts}
        self._recorded: dict[int, _Recorded] = {}
        self.plan: RowPlan | None = None
        self.kept = 0
        try:
            if restart:
                self._forget()
            self._resume()
        except BaseException:
            self._journal.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Remove a run that succeeded, or that an `InputError` ended before a core's record."""
        with closing(self._journal):
            kept = not isinstance(error, InputError) or self._place.work_files()
            if error is None or not kept:
                self._forget()
            elif isinstance(error, InputError):
                say_kept(error)

    def _forget(self) -> None:
        self._journal.clear()
        self._place.remove_work()

    def _resume(self) -> None:
        records = self._journal.records
        if not records:
            return
        begun = _begun(self._journal.path, records)
        found = changed_fields(begun["facts"], self._facts)
        for name, now in self._matrices.items():
            found += differences(name, begun["matrices"].get(name, {}), now)
        refuse(self._journal.path, found)
        self.plan = RowPlan(**begun["plan"])

    def begin(self, plan: RowPlan) -> None:
        """Record the plan of a new run."""
        if self.plan is None:
            self._place.remove_work()
            record = {"facts": self._facts, "matrices": self._matrices, "plan": plan._asdict()}
            self._journal.append([{"rows": record}])
            self.plan = plan

    def load(self, core: int) -> tuple[int, Mapping[str, NDArray[Any]]]:
        """Return how many blocks a core has reduced, and its arrays by name: (0, {}) without any.

        A damaged record counts as none: the blocks are reduced again.
        """
        self._recorded[core] = _Recorded(time.monotonic())
        path = self._path(core)
        if not path.exists():
            return 0, {}
        try:
            with path.open("rb") as stream, np.load(stream) as stored:
                arrays = {name: stored[name] for name in stored.files}
                done = int(arrays.pop(_DONE))
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error):
            return 0, {}
        self.kept += done
        return done, arrays

    def note(self, core: int, done: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Record a core's arrays by name, where the last record was long enough ago."""
        recorded = self._recorded[core]
        now = time.monotonic()
        if now - recorded.at < _INTERVAL * recorded.took:
            return
        stored = {**arrays, _DONE: done}
        with CompanionFiles() as files:
            files.add(self._path(core), lambda stream: np.savez(stream, **stored))  # type: ignore[arg-type]
        self._recorded[core] = _Recorded(time.monotonic(), time.monotonic() - now)

    def _path(self, core: int) -> Path:
        return self._place.work(f".rows{core}.npz")

    def resumption(self, blocks: int) -> Resumption:
        """Return how many of the blocks of rows an earlier run had reduced."""
        return Resumption(str(self._journal.path), blocks, self.kept)
