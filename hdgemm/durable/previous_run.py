"""What an earlier run left in its journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import HdgemmError, InputError
from hdgemm.pipeline.plan import Rect, from_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hdgemm.durable.identity import Identity
    from hdgemm.pipeline.plan import Plan

#: Changes when a reader of the last format would misread this one.
FORMAT: Final = 1
BEGIN_AGAIN: Final = "restart=True (--restart) begins again"


def say_kept(error: InputError) -> None:
    """Append to the message of an error that the finished parts of the run are kept."""
    kept = "what the run has finished is kept: the same command goes on from there"
    error.args = (f"{error}; {kept}, and {BEGIN_AGAIN}",)


class DamagedError(HdgemmError):
    """What an earlier run left was damaged, and cannot be computed again from what is there."""


@dataclass(frozen=True)
class Earlier:
    """An earlier run, as its journal tells.

    `run` is its name, `identity` the command (`Identity.to_record`), `samples` the beginnings of
    slabs of the C that it found (`pieces.sample`), for a C that is updated. `done` are slabs that
    were durable, with their checksums; `publishing`: all were, and the draft was about to get its
    name; `finished` is C's fingerprint when it was finished, or None.

    Several `devices` drew tiles of C from a pool: `plan` is the first one's, and gives the problem
    only; the workers of a cluster have no plan in common. `redo` has the bytes of a slot and the
    count of slots of the redo log, where C is updated.
    """

    run: str
    plan: Plan | None
    identity: Mapping[str, Any]
    samples: Sequence[Sequence[int]]
    done: Mapping[Rect, int]
    publishing: bool
    finished: Mapping[str, Any] | None
    devices: tuple[str, ...]
    redo: tuple[int, int]

    @property
    def shared(self) -> bool:
        """Whether several devices, or the workers of a cluster, drew pieces of C."""
        return self.plan is None or len(self.devices) > 1

    @property
    def device_plan(self) -> Plan:
        """The plan of a run on this machine; `InputError` for a cluster's run, which has none."""
        if self.plan is None:
            raise InputError(
                f"the run {self.run} was computed by a cluster: give the same command with "
                f"--cluster (client=…) to go on with it; {BEGIN_AGAIN}"
            )
        return self.plan

    @property
    def updates(self) -> bool:
        """Whether its C is read where it is overwritten."""
        return bool(self.identity["target"]["updates"])

    @classmethod
    def read(cls, path: Path, records: Sequence[Mapping[str, Any]]) -> Earlier | None:
        """Make sense of a journal's records; None when no run had begun, `InputError` for another
        format.
        """
        if not records:
            return None
        if "factor" in records[0]:
            routine = records[0]["factor"]["identity"]["routine"]
            raise InputError(
                f"{path} is the journal of a run of {routine}: finish it with the same command"
            )
        begin = records[0].get("begin")
        # Journals of before several devices had the same number and no list of devices.
        if begin is None or begin.get("format") != FORMAT or "devices" not in begin:
            raise InputError(
                f"{path} is no journal of format {FORMAT}: another version wrote it; {BEGIN_AGAIN}"
            )
        done: dict[Rect, int] = {}
        finished = None
        for record in records:
            if "done" in record:
                *rect, crc = record["done"]
                done[Rect(*rect)] = crc
            for rect in record.get("undone", ()):
                done.pop(Rect(*rect), None)
            finished = record.get("finished", finished)
        return cls(
            begin["run"],
            from_json(begin["plan"]) if begin["plan"] is not None else None,
            begin["identity"],
            begin["samples"],
            done,
            any("publishing" in record for record in records),
            finished,
            tuple(begin["devices"]),
            tuple(begin["redo"] or (0, 0)),
        )

    def check(self, path: Path, identity: Identity) -> None:
        """Raise `InputError`, which says what is different, for another command."""
        # Once the new C has taken the old one's place, the old one is gone.
        gone = self.publishing and self.identity["target"]["replaces"]
        found = identity.differences(self.identity, besides="C" if gone else "")
        if found:
            raise InputError(
                f"{path} belongs to another run: {'; '.join(found)}. Give the same command to go "
                f"on with it; {BEGIN_AGAIN}",
                journal=str(path),
                differences=found,
            )


def first_record(
    run: str,
    plans: Sequence[Plan],
    identity: Identity,
    samples: Sequence[Sequence[int]],
    redo: tuple[int, int] | None,
) -> dict[str, Any]:
    """Return the record that begins a journal; the run of a cluster has no plans."""
    return {
        "begin": {
            "format": FORMAT,
            "run": run,
            "identity": identity.to_record(),
            "plan": plans[0].to_json() if plans else None,
            "devices": [plan.device.name for plan in plans],
            "redo": redo,
            "samples": [list(each) for each in samples],
        }
    }
