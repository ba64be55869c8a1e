"""Receipts: what a worker sends back for a block of C, small whatever the block's size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from hdgemm.durable.pieces import Entry
from hdgemm.pipeline.tiles import Rect
from hdgemm.pipeline.timeline import Event
from hdgemm.report import StageReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hdgemm.cluster._block_writer import BlockWriter
    from hdgemm.pipeline.plan import Stage
    from hdgemm.pipeline.timeline import Timeline

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
    seconds
        Time from opening the operands to the last byte written.
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
    stages: Mapping[Stage, StageReport]
    events: Sequence[Event]
    peak_memory: int
    began: float = 0.0
    seconds: float = 0.0
    worker: str = ""

    @classmethod
    def of(
        cls,
        number: int,
        block: Rect,
        writer: BlockWriter,
        timeline: Timeline,
        stages: Mapping[Stage, StageReport],
        peak_memory: int | None,
    ) -> Receipt:
        """Make the receipt of a block that `writer` has stored; its times are filled in later."""
        return cls(
            number,
            block,
            writer.pieces(block),
            stages,
            events=coalesce(timeline.events),
            peak_memory=peak_memory or 0,
        )

    @property
    def flops(self) -> int:
        """Floating-point operations of the block."""
        return self.stages["mult1"].flops if "mult1" in self.stages else 0

    @property
    def bytes_read(self) -> int:
        """Bytes of A, B and the old C that were read from storage."""
        return self.stages["load1"].nbytes if "load1" in self.stages else 0

    @property
    def bytes_written(self) -> int:
        """Bytes of C that were stored."""
        return self.stages["store2"].nbytes if "store2" in self.stages else 0

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Receipt:
        """Return the receipt of a message, in which tuples of any kind arrive as plain ones."""
        pieces = [(Rect(*place), crc) for place, crc in message["pieces"]]
        events = [Event(*event) for event in message["events"]]
        stages = {name: StageReport(**stage) for name, stage in message["stages"].items()}
        block = Rect(*message["block"])
        return cls(
            **{
                **message,
                "block": block,
                "pieces": pieces,
                "stages": stages,
                "events": events,
            }
        )

    def entry(self) -> Entry:
        """Return the entry of the journal: the pieces, and who computed them."""
        return Entry(
            dict(self.pieces),
            {
                "block": self.block,
                "worker": self.worker,
                "seconds": self.seconds,
                "read": self.bytes_read,
                "written": self.bytes_written,
            },
        )


def coalesce(events: Iterable[Event]) -> list[Event]:
    """Join neighbouring events of each stage of each device, so that few are left."""
    rows: dict[tuple[str, str], list[Event]] = {}
    for event in sorted(events, key=lambda each: each.start):
        rows.setdefault((event.device, event.stage), []).append(event)
    return [joined for row in rows.values() for joined in _joined(row)]


def _joined(row: Sequence[Event]) -> list[Event]:
    count = -(-len(row) // _MOST_EVENTS)
    return [reduce(Event.joined, row[first : first + count]) for first in range(0, len(row), count)]
