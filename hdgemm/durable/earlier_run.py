"""What an earlier run left in its journal, and the errors of a run that cannot go on with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hdgemm.durable.identity import Identity
from hdgemm.durable.journal import read_journal
from hdgemm.durable.pieces import FinishedPieces
from hdgemm.errors import HdgemmError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hdgemm.durable.fingerprint import Fingerprint

#: Changes when a reader of the last format would misread this one.
FORMAT: Final = 4
BEGIN_AGAIN: Final = "restart=True (--restart) begins again"
#: End of the message of an error after which a run can go on.
KEPT: Final = (
    "; what the run has finished is kept: the same command goes on from there, and " + BEGIN_AGAIN
)


class DamagedError(HdgemmError):
    """What an earlier run left was damaged, and cannot be computed again from what is there."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """An earlier run, as its journal tells.

    Parameters
    ----------
    run
        Its name.
    identity
        Its command.
    plan
        Its plan, in plain values that only its routine knows; None without one.
    samples
        Beginnings of parts of a matrix that is updated in place, see `pieces.sample`.
    redo
        Bytes and count of the slots of its redo log; zeros without one.
    pieces
        The pieces that are finished.
    publishing
        All of the result was durable, and its draft was about to get its name.
    result
        The result's fingerprint when the run was finished; None when it was not.
    """

    run: str
    identity: Identity
    plan: Any
    samples: Sequence[Sequence[int]]
    redo: tuple[int, int]
    pieces: FinishedPieces
    publishing: bool
    result: Fingerprint | None

    @classmethod
    def read(cls, path: Path, records: Sequence[Mapping[str, Any]]) -> EarlierRun | None:
        """Return the run that a journal records; None when no run had begun.

        Raises
        ------
        InputError
            When another version wrote the journal.
        """
        if not records:
            return None
        begin = records[0].get("begin")
        if begin is None or begin.get("format") != FORMAT:
            raise InputError(
                f"{path} is no journal of format {FORMAT}: another version wrote it; {BEGIN_AGAIN}"
            )
        return cls(
            begin["run"],
            Identity(**begin["identity"]),
            begin["plan"],
            begin["samples"],
            tuple(begin["redo"]),
            FinishedPieces(records),
            any("publishing" in record for record in records),
            next((record["finished"] for record in records if "finished" in record), None),
        )

    @classmethod
    def at(cls, path: Path) -> EarlierRun | None:
        """Return the run of the journal at a path; None where there is none."""
        try:
            there = path.is_file()
        except OSError as error:  # a name that is too long
            raise InputError(
                f"cannot open the journal {path}: {error.strerror}", path=str(path)
            ) from error
        return cls.read(path, read_journal(path)[0]) if there else None

    @staticmethod
    def first_record(
        run: str,
        identity: Identity,
        plan: Any,
        samples: Sequence[Sequence[int]] = (),
        redo: tuple[int, int] = (0, 0),
    ) -> dict[str, Any]:
        """Return the record that begins a journal."""
        return {
            "begin": {
                "format": FORMAT,
                "run": run,
                "identity": identity.to_record(),
                "plan": plan,
                "samples": samples,
                "redo": redo,
            }
        }

    def of_other_kind(self, path: Path) -> InputError:
        """Return the error of a routine that cannot go on from this run's plan."""
        state = "unfinished" if self.result is None else "finished"
        return InputError(
            f"{path} is the journal of another run, of {self.identity.routine}, which is {state}: "
            f"name another result, or another journal; {BEGIN_AGAIN}",
            journal=str(path),
        )

    def check(self, path: Path, identity: Identity) -> None:
        """Raise `InputError`, which says what is different, for another command."""
        refuse(path, identity.differences(self.identity, published=self.publishing))


def refuse(path: Path, differences: Sequence[str]) -> None:
    """Raise `InputError` where a journal is of another run, which differs in these points."""
    if differences:
        raise InputError(
            f"{path} belongs to another run: {'; '.join(differences)}. Give the same command to "
            f"go on with it; {BEGIN_AGAIN}",
            journal=str(path),
            differences=list(differences),
        )


def say_kept(error: HdgemmError) -> None:
    """Append to the message of an error that the finished parts of the run are kept."""
    error.args = (f"{error}{KEPT}",)
