"""A durable pass over rows: what each core has reduced is recorded beside the output.

The journal has the command and the plan. Each core replaces its own file with the arrays that its
blocks of rows are reduced to, and the number of blocks, from time to time; later blocks are reduced
again. A reducer needs no journal of its own::

    with durable_rows(call, out, {"A": a}, {"routine": "svd"}) as durable:
        if durable is not None:
            durable.begin(plan)                 # or goes on with `durable.plan`
        ...                                     # in the thread of each core:
        done, arrays = durable.load(core)       # (0, {}) at the start
        for number in range(done, blocks):
            ...                                 # reduces a block to small arrays
            durable.note(core, number + 1, arrays)
"""

from __future__ import annotations

import os
import time
import zipfile
import zlib
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.durable.earlier_run import EarlierRun
from hdgemm.durable.identity import Identity
from hdgemm.durable.place import ResultPlace
from hdgemm.durable.run import JournaledRun
from hdgemm.errors import InputError
from hdgemm.linalg.planning.rows import RowPlan
from hdgemm.matrices.companions import CompanionFiles
from hdgemm.matrices.files import open_regular
from hdgemm.matrices.location import parse_location
from hdgemm.product.target import is_location
from hdgemm.report import Resumption

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Call
    from hdgemm.durable.place import Checkpointing
    from hdgemm.linalg.checkpoint import Command
    from hdgemm.matrices.stored import StoredMatrix

#: Minimum interval between two records, in units of the last record's duration.
_INTERVAL: Final = 20.0
#: Name of the count of reduced blocks, beside the arrays of a core.
_DONE: Final = "done"
#: Name of the plan in the journal.
_PLAN: Final = "rows"


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
    earlier = EarlierRun.at(path)
    if earlier is None:
        return None
    return _plan_of(path, earlier)


def _plan_of(path: Path, earlier: EarlierRun) -> RowPlan:
    if not isinstance(earlier.plan, dict) or _PLAN not in earlier.plan:
        raise InputError(f"{path} is no journal of a reduction of rows")
    return RowPlan(**earlier.plan[_PLAN])


def _place(out: Any) -> ResultPlace:
    if not is_location(out):
        raise InputError("checkpoint needs a result in a file: give out as a path")
    return ResultPlace(parse_location(out), (0, 0), np.dtype("float64"))


class RowCheckpoint(JournaledRun):
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
        The routine, and what else decides the result, as plain values.
    restart
        Discard what an earlier run left.

    Attributes
    ----------
    plan
        Plan of the earlier run; None without one.
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
        self._recorded: dict[int, _Recorded] = {}
        self.plan: RowPlan | None = None
        self.kept = 0
        place = _place(out)
        inputs = {name: each.operand for name, each in matrices.items()}
        identity = Identity.of(facts["routine"], facts, inputs, place)
        super().__init__(identity, place, checkpoint, restart=restart)

    def _open(self) -> None:
        if self.earlier is not None:
            self.plan = _plan_of(self.path, self.earlier)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Remove a run that succeeded; else as other runs."""
        if error is None:
            self.discard()
        super().__exit__(kind, error, trace)

    @property
    def _keeps_parts(self) -> bool:
        return bool(self.place.work_files())

    def begin(self, plan: RowPlan) -> None:
        """Record the plan of a new run; one that goes on has the earlier run's."""
        if self.plan is None:
            self.place.remove_work()
            self.plan = plan
        self.start({_PLAN: self.plan._asdict()})

    def load(self, core: int) -> tuple[int, Mapping[str, NDArray[Any]]]:
        """Return how many blocks a core has reduced, and its arrays by name: (0, {}) without any.

        A damaged record counts as none: the blocks are reduced again.
        """
        self._recorded[core] = _Recorded(time.monotonic())
        path = self._path(core)
        if not path.exists():
            return 0, {}
        try:
            with os.fdopen(open_regular(path), "rb") as stream, np.load(stream) as stored:
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
        return self.place.work(f".rows{core}.npz")

    def resumption(self, blocks: int) -> Resumption:
        """Return how many of the blocks of rows an earlier run had reduced."""
        return Resumption(str(self.path), blocks, self.kept)
