"""Receipts: what a worker sends back for a block of C, small whatever the block's size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hdgemm.pipeline.plan import Rect
from hdgemm.pipeline.timeline import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hdgemm.report import Report

#: Events of one stage of one device that a receipt carries at most.
_MOST_EVENTS: Final = 16


@dataclass(frozen=True, slots=True)
class Receipt:
    """A block of C that is durable.

    Parameters
    ----------
    number
        Number of the task.
    block
        Rows and columns of C.
    pieces
        The rectangles in which it was stored, and their CRC-32.
    began
        The worker's `time.time` at the start.
    seconds, gflops
        Time from opening the operands to the last byte written, and 10⁹ flop/s of the run.
    stages
        What each stage did, as in a report.
    events
        The run's timeline, neighbouring events of a stage joined.
    peak_memory
        Bytes that the run added to the worker's memory.
    worker
        Address of the worker; the scheduler adds it.
    """

    number: int
    block: Rect
    pieces: Sequence[tuple[Rect, int]]
    began: float
    seconds: float
    gflops: float
    stages: Mapping[str, Mapping[str, Any]]
    events: Sequence[Event]
    peak_memory: int
    worker: str = ""

    @classmethod
    def of(
        cls, number: int, block: Rect, pieces: Sequence[tuple[Rect, int]], report: Report
    ) -> Receipt:
        """Make a receipt of a run's report; its times are filled in later."""
        return cls(
            number=number, block=block, pieces=pieces, began=0.0, seconds=0.0,
            gflops=report.gflops,
            stages={name: stage.to_dict() for name, stage in report.stages.items()},
            events=coalesce(report.timeline.events),
            peak_memory=report.peak_memory_bytes or 0,
        )  # fmt: skip

    @property
    def flops(self) -> int:
        """Floating-point operations of the block."""
        return int(self.stages.get("mult1", {}).get("flops", 0))

    @property
    def bytes_read(self) -> int:
        """Bytes of A, B and the old C that were read from storage."""
        return int(self.stages.get("load1", {}).get("bytes", 0))

    @property
    def bytes_written(self) -> int:
        """Bytes of C that were stored."""
        return int(self.stages.get("store2", {}).get("bytes", 0))

    def to_message(self) -> dict[str, Any]:
        """Return plain values, as the scheduler transports them."""
        return {
            "number": self.number,
            "block": list(self.block),
            "pieces": [[*rect, crc] for rect, crc in self.pieces],
            "began": self.began,
            "seconds": self.seconds,
            "gflops": self.gflops,
            "stages": {name: dict(stage) for name, stage in self.stages.items()},
            "events": [list(event) for event in self.events],
            "peak_memory": self.peak_memory,
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Receipt:
        """Return the receipt of a message that the scheduler has transported."""
        return cls(
            number=message["number"],
            block=Rect(*message["block"]),
            pieces=[(Rect(*place), crc) for *place, crc in message["pieces"]],
            began=message["began"],
            seconds=message["seconds"],
            gflops=message["gflops"],
            stages=message["stages"],
            events=[Event(*event) for event in message["events"]],
            peak_memory=message["peak_memory"],
            worker=message.get("worker", ""),
        )

    def records(self) -> list[dict[str, Any]]:
        """Return the journal's records: of the pieces, as other durable runs have, then of it."""
        return [
            *({"done": [*rect, crc]} for rect, crc in self.pieces),
            {"block": {
                "rect": list(self.block), "worker": self.worker, "seconds": self.seconds,
                "read": self.bytes_read, "written": self.bytes_written,
            }},
        ]  # fmt: skip


def coalesce(events: Iterable[Event]) -> list[Event]:
    """Join neighbouring events of each stage of each device, so that few are left.

    Bytes and flops are summed; a joined event lasts from the first start to the last end.
    """
    rows: dict[tuple[str, str], list[Event]] = {}
    for event in sorted(events, key=lambda each: each.start):
        rows.setdefault((event.device, event.stage), []).append(event)
    return [joined for row in rows.values() for joined in _joined(row)]


def _joined(row: Sequence[Event]) -> list[Event]:
    count = -(-len(row) // _MOST_EVENTS)
    return [
        group[0]._replace(
            end=max(event.end for event in group),
            nbytes=sum(event.nbytes for event in group),
            flops=sum(event.flops for event in group),
        )
        for group in (row[first : first + count] for first in range(0, len(row), count))
    ]
