"""Loads, work units and steps looked up by number, whether known beforehand or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.pipeline.plan import Load, Step, WorkUnit


class Ledger(Protocol):
    """Loads, work units and steps by their numbers: a plan's, or one that grows while it runs."""

    @property
    def loads(self) -> Sequence[Load]:
        """In the order in which they are needed."""

    @property
    def units(self) -> Sequence[WorkUnit]:
        """In the order in which they are computed."""

    @property
    def steps(self) -> Sequence[Step]:
        """In the order in which they are computed."""


@dataclass
class GrowingLedger:
    """Implements `Ledger`; appended to under the schedule's lock, read by number without it."""

    loads: list[Load] = field(default_factory=list)
    units: list[WorkUnit] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
