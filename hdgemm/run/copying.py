"""As many threads for load1 and store2 as it takes to keep a device's link full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from hdgemm.machine.limits import default_host_bytes
from hdgemm.matrices.transfer import copy_pool
from hdgemm.planning.memory import op_extents
from hdgemm.run.copy_threads import copy_rates, copy_threads

if TYPE_CHECKING:
    from hdgemm.options import Options
    from hdgemm.pipeline.plan import Problem

#: Bytes of staged operands below which the measurement would take longer than it saves.
_WORTH_MEASURING: Final = 1 << 30
#: Bytes that a measurement copies, at the most, and its share of the memory allowed.
_SAMPLE_BYTES: Final = 256 << 20
_SAMPLE_SHARE: Final = 8


@runtime_checkable
class Linked(Protocol):
    """A device behind a link that host copies have to keep up with."""

    def link_rate(self) -> float:
        """Return the bytes per second that the link takes from page-locked memory."""


def fit_copy_threads(problem: Problem, options: Options, device: object) -> int | None:
    """Give the pool of copies the fewest threads that keep a device's link full.

    Copies and link are measured, once in a process each.

    Returns
    -------
    int or None
        How many threads copy from now on; None where nothing was changed: the device has no link
        of its own, or too little goes through staging.
    """
    if not isinstance(device, Linked) or _staged_bytes(problem) < _WORTH_MEASURING:
        return None
    allowed = options.host_bytes or default_host_bytes()
    rates = copy_rates(min(_SAMPLE_BYTES, allowed // _SAMPLE_SHARE))
    threads = min(copy_threads(rates, device.link_rate()), options.threads or max(rates))
    copy_pool().resize(threads)
    return threads


def _staged_bytes(problem: Problem) -> int:
    """Return the bytes of those operands in memory that are copied into staging or out of it."""
    specs = {name: problem.spec(name) for name in op_extents(problem)}
    return sum(
        rows * cols * specs[name].itemsize
        for name, (rows, cols) in op_extents(problem).items()
        if specs[name].path == "staged" and specs[name].place == "memory"
    )
