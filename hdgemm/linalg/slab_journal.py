"""The records that a durable factorisation keeps in its journal."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from hdgemm.durable.fingerprint import changed_fields, differences, fingerprint
from hdgemm.durable.previous_run import BEGIN_AGAIN, DamagedError
from hdgemm.errors import InputError
from hdgemm.linalg.planning.slab import SlabPlan
from hdgemm.linalg.planning.solve import SolvePlan
from hdgemm.run.members import update_devices
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.durable.destination import Destination
    from hdgemm.durable.run import Checkpointing
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.options import Options

    #: Small arrays that belong to a slab: pivots of LU, tau of QR.
    Notes = Mapping[str, NDArray[Any]]

#: Plans of durable runs: factorisations, and solves.
AnyPlan: TypeAlias = SlabPlan | SolvePlan
#: Changes when a reader of the last format would misread this one.
_FORMAT: Final = 1
#: Passes over the slabs: factoring them, and bringing the rows of L into their last order.
PASSES: Final = 2


@dataclass(frozen=True, slots=True)
class Command:
    """The call of a routine as a journal identifies it, and how the run is recorded.

    Parameters
    ----------
    routine, arguments
        Its name, and arguments that decide the result.
    checkpoint
        False for none; True for a journal beside the output, or the journal's path.
    restart
        Discard what an earlier run left.
    transposed
        The slabs are rows of the output: the transpose is factored.
    triangle
        Only the slabs' own rows are stored: a new file has no disk space for the others.
    matrices
        Further inputs by name, beside the matrix that is cut into slabs.
    """

    routine: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Checkpointing = False
    restart: bool = False
    transposed: bool = False
    triangle: bool = False
    matrices: Mapping[str, StoredMatrix] = field(default_factory=dict)

    def identity(self, source: StoredMatrix, destination: Destination) -> dict[str, Any]:
        """Return what must be the same when the run goes on, as plain values."""
        return {
            "routine": self.routine, "arguments": dict(self.arguments),
            "target": destination.target(),
            "inputs": {} if destination.updates else {"A": fingerprint(source.operand)},
            "matrices": {
                name: fingerprint(matrix.operand) for name, matrix in self.matrices.items()
            },
            "replaced": [
                name for name, matrix in self.matrices.items()
                if destination.holds(matrix.operand)
            ],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredSlab:
    """A slab that is durable.

    Parameters
    ----------
    number
        Its place in the pass.
    checksums
        Of its pieces, from left to right.
    notes
        What the factorisation recorded with it.
    """

    number: int
    checksums: Sequence[int]
    notes: Notes

    def record(self, pass_number: int) -> dict[str, Any]:
        """Return plain values for the journal."""
        notes = {name: _encode(array) for name, array in self.notes.items()}
        return {"slab": [pass_number, self.number, list(self.checksums), notes]}

    @classmethod
    def of(cls, values: Sequence[Any]) -> StoredSlab:
        """Return the slab of a record."""
        _, number, checksums, notes = values
        return cls(number, checksums, {name: _decode(array) for name, array in notes.items()})


def _encode(array: NDArray[Any]) -> list[str]:
    return [array.dtype.str, base64.b64encode(array.tobytes()).decode()]


def _decode(values: Sequence[str]) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(values[1]), values[0])


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """An earlier run of a factorisation, as its journal tells.

    Parameters
    ----------
    run
        Its name.
    identity
        Its command, see `Command.identity`.
    plan
        Its slabs.
    samples
        Beginnings of pieces of A, for a factorisation in place, see `hdgemm.durable.pieces`.
    redo
        Bytes and count of the slots of its redo log.
    passes
        The slabs that are durable, in each pass; the first ones of the plan.
    last
        The pass and the slab that was recorded last; None without one.
    piece_bytes
        Bytes of a piece of a slab, see `SlabStore`.
    publishing
        All slabs were durable, and the draft was about to get its name.
    finished
        The result's fingerprint when it was finished; None when it was not.
    """

    run: str
    identity: Mapping[str, Any]
    plan: AnyPlan
    samples: Sequence[Sequence[int]]
    redo: tuple[int, int]
    passes: tuple[list[StoredSlab], ...]
    last: tuple[int, StoredSlab] | None
    piece_bytes: int
    publishing: bool
    finished: Mapping[str, Any] | None

    @classmethod
    def read(cls, path: Path, records: Sequence[Mapping[str, Any]]) -> EarlierRun | None:
        """Return the run that a journal records; None when no run had begun.

        Raises
        ------
        InputError
            When it is the journal of something else than a factorisation.
        """
        if not records:
            return None
        begin = records[0].get("factor")
        if begin is None or begin.get("format") != _FORMAT:
            raise InputError(
                f"{path} is no journal of a factorisation in format {_FORMAT}; {BEGIN_AGAIN}"
            )
        passes: tuple[list[StoredSlab], ...] = tuple([] for _ in range(PASSES))
        last = None
        for record in records:
            if "slab" not in record:
                continue
            slab, done = StoredSlab.of(record["slab"]), passes[record["slab"][0]]
            # A slab that was found damaged is stored, and recorded, again.
            if slab.number <= len(done):
                done[slab.number :] = [slab]
                last = record["slab"][0], slab
        return cls(
            begin["run"], begin["identity"], _plan(begin["plan"]), begin["samples"],
            tuple(begin["redo"]), passes, last, begin["piece_bytes"],
            any("publishing" in record for record in records),
            next((record["finished"] for record in records if "finished" in record), None),
        )  # fmt: skip

    @staticmethod
    def first_record(
        run: str,
        identity: Mapping[str, Any],
        plan: AnyPlan,
        samples: Sequence[Sequence[int]],
        redo: tuple[int, int],
        piece_bytes: int,
    ) -> dict[str, Any]:
        """Return the record that begins a journal."""
        return {
            "factor": {
                "format": _FORMAT, "run": run, "identity": identity, "plan": plan.to_dict(),
                "samples": [list(each) for each in samples], "redo": list(redo),
                "piece_bytes": piece_bytes,
            }
        }  # fmt: skip

    def differences(self, identity: Mapping[str, Any]) -> list[str]:
        """Say in words how another command differs from the one that the journal is of."""
        before = self.identity
        then, now = (
            {"the routine": each["routine"]} | each["arguments"] for each in (before, identity)
        )
        found = changed_fields(then, now)
        found += changed_fields(before["target"], identity["target"], "out's ")
        # Once the result has taken a matrix's place, the matrix is gone.
        if not (self.publishing and before["target"]["replaces"]):
            inputs = identity["inputs"].get("A", {})
            found += differences("A", before["inputs"].get("A", {}), inputs)
        gone = before.get("replaced", ()) if self.publishing else ()
        for name, matrix in identity["matrices"].items():
            if name not in gone:
                found += differences(name, before.get("matrices", {}).get(name, {}), matrix)
        return found

    def excluded_by(self, options: Options) -> list[str]:
        """Say in words why options do not allow the plan."""
        plan, limit, found = self.plan, options.host_bytes, []
        if limit is not None and plan.bytes_held > limit:
            held, now_allowed = format_size(plan.bytes_held), format_size(limit)
            found.append(f"the plan holds {held}, allowed are now {now_allowed}")
        now = update_devices(options)
        if isinstance(plan, SlabPlan) and plan.slabs and plan.devices != now:
            then = ", ".join(plan.devices) or "the host"
            found.append(f"updates ran on {then}, not on {', '.join(now) or 'the host'}")
        width = max((slab.width for slab in plan.slabs), default=0)
        if options.tile is not None:
            columns = plan.p if isinstance(plan, SolvePlan) else plan.n
            asked = min(options.tile[1], columns), options.tile[2]
            if asked != (width, plan.block):
                found.append(f"slabs and blocks had {width} and {plan.block} columns, not {asked}")
        return found


def _plan(values: Mapping[str, Any]) -> AnyPlan:
    """Return the plan that a journal has."""
    return (SolvePlan if values["kind"] == "solve" else SlabPlan).from_dict(values)


def refuse(path: Path, differences: Sequence[str]) -> None:
    """Raise `InputError` where a journal is another command's."""
    if differences:
        raise InputError(
            f"{path} belongs to another run: {'; '.join(differences)}. Give the same command to "
            f"go on with it; {BEGIN_AGAIN}",
            journal=str(path), differences=list(differences),
        )  # fmt: skip


def damaged_error(path: Path, how: str) -> DamagedError:
    """Return the error of a file that was changed, and of which the run cannot go on."""
    return DamagedError(
        f"{path} was changed {how}: the factorisation cannot go on from what is there; restore A, "
        f"then {BEGIN_AGAIN}",
        path=str(path),
    )  # fmt: skip
