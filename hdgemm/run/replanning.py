"""A device with less memory free than its plan takes: plan again with what is free."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from hdgemm.errors import AllocationError, DoesNotFitError

if TYPE_CHECKING:
    from hdgemm.options import Options
    from hdgemm.pipeline.plan import Plan
    from hdgemm.report import Report

_LOG: Final = logging.getLogger(__name__)
#: How often a run is planned again before the device's refusal is the caller's.
REPLANS: Final = 2
#: Of what was refused, asked for next at the most: also a driver that does not tell what is free,
#: or has it in pieces, is asked for less.
_NEXT: Final = 0.75


class Run(Protocol):
    """One attempt: open the device, plan unless a plan is given, execute."""

    def __call__(self, options: Options, plan: Plan | None, /) -> Report:
        """Raise `AllocationError` where the device refuses the plan's memory."""


def run_in_free_memory(run: Run, options: Options, plan: Plan | None) -> Report:
    """Run; where the device refuses the memory, ask it again what is free and plan for that.

    Nothing was computed when an allocation is refused, so nothing is computed twice. A device
    tells what is free when it is opened.

    Returns
    -------
    Report
        Its plan names under ``replanned`` what was refused, in bytes, and why.

    Raises
    ------
    DoesNotFitError
        After `REPLANS` more attempts, or when no smaller plan fits; the cause is the refusal.
    """
    refused: list[AllocationError] = []
    while True:
        try:
            report = run(options, plan)
        except AllocationError as error:
            if len(refused) == REPLANS:
                raise
            # Its frames hold the device that was closed.
            refused.append(error.with_traceback(None))
            _LOG.warning("%s; planning again with the memory that is free", str(error))
            options = replace(options, device_memory=max(1, int(error.planned * _NEXT)))
            plan = None
        except DoesNotFitError as error:
            if refused:
                raise error from refused[-1]
            raise
        else:
            return report if not refused else _noted(report, refused)


def _noted(report: Report, refused: list[AllocationError]) -> Report:
    replanned: list[dict[str, Any]] = [
        {"refused_bytes": each.planned, "because": str(each)} for each in refused
    ]
    return replace(report, plan={**report.plan, "replanned": replanned})
