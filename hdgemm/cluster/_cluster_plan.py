"""The plan of a product on a cluster: the pool of a real run in virtual time, as one value."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hdgemm.cluster.blocks import LEAST_SECONDS, MOST, Costs
from hdgemm.cluster.virtual_time import VirtualCluster
from hdgemm.plan_terms import expected_line, terms
from hdgemm.units import format_rate, format_size, format_speed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.cluster.virtual_time import VirtualWorker


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What a product on a cluster will do and take; which worker gets which block is decided later.

    Parameters
    ----------
    m, n, k, dtype
        The product.
    workers
        Number of workers.
    gflops
        10⁹ flop/s of all workers together.
    bandwidth
        Bytes/s of the storage, shared by all workers.
    tasks
        Number of blocks of C.
    largest, smallest
        Rows and columns of the largest and of the smallest block.
    bytes_read, most_bytes_read
        Bytes read from the storage by all workers, and by the worker that reads most.
    bytes_written
        Bytes of C.
    flops
        Floating-point operations.
    host_bytes, host_limit
        Bytes of the largest block of C, which its worker holds, and the memory that the worker with
        the least of it may take for block and tiles.
    expected_seconds
        Expected duration.
    efficiency
        The time of perfect balance without reading, as a part of `expected_seconds`.
    useful_extent
        m = n = k of the smallest product for which these workers read less than they compute and
        have several blocks each. More workers do not help below.

    See Also
    --------
    plan : Returns it.

    Examples
    --------
    >>> found = hdgemm.cluster.plan("/shared/A.npy", "/shared/B.npy", out="C.npy", client=client)
    >>> print(found.expected_seconds, found.tasks)
    """

    m: int
    n: int
    k: int
    dtype: str
    workers: int
    gflops: float
    bandwidth: float
    tasks: int
    largest: tuple[int, int]
    smallest: tuple[int, int]
    bytes_read: int
    most_bytes_read: int
    bytes_written: int
    flops: int
    host_bytes: int
    host_limit: int
    expected_seconds: float
    efficiency: float
    useful_extent: int

    @property
    def planned_bytes(self) -> dict[str, int]:
        """Bytes of the storage, by all workers: "load1" is read, "store2" written."""
        return {"load1": self.bytes_read, "store2": self.bytes_written}

    @property
    def expected_phase_seconds(self) -> dict[str, float]:
        """Seconds of arithmetic, and of reading from the storage, each by itself."""
        return {
            "arithmetic": self.flops / (1e9 * self.gflops),
            "storage": self.bytes_read / self.bandwidth,
        }

    @property
    def expected_limit(self) -> str:
        """``"arithmetic"`` or ``"storage"``: what takes longer by itself."""
        phases = self.expected_phase_seconds
        return "storage" if phases["storage"] > phases["arithmetic"] else "arithmetic"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self) | terms(self)

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def lines(self) -> list[str]:
        """Return the plan in a few lines of text."""
        (rows, cols), (few_rows, few_cols) = self.largest, self.smallest
        read, most = format_size(self.bytes_read), format_size(self.most_bytes_read)
        return [
            (
                f"C ({self.m} × {self.n}) := A ({self.m} × {self.k}) · B ({self.k} × {self.n}), "
                f"{self.dtype}; workers: {self.workers}, {format_speed(self.gflops)} in all"
            ),
            f"tasks: {self.tasks}, blocks of C from {rows} × {cols} to {few_rows} × {few_cols}",
            (
                f"read from storage: {read} in all, {most} by the worker that reads most; "
                f"written: {format_size(self.bytes_written)}"
            ),
            (
                f"{expected_line(self)}, {100 * self.efficiency:.0f} % of perfect balance; "
                f"storage {format_rate(self.bandwidth)} for all"
            ),
            f"more workers do not help below m = n = k = {self.useful_extent}",
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def plan_cluster(
    extents: tuple[int, int, int],
    dtype: str,
    workers: Sequence[VirtualWorker],
    *,
    costs: Costs,
    bandwidth: float,
    memory: int,
    itemsize: int,
    flops_per_element: int,
    quantum: tuple[int, int] = (1, 1),
) -> ClusterPlan:
    """Plan a product by running it in virtual time.

    `extents` are m, n and k, `memory` the bytes of the worker with the least, `itemsize` the bytes
    of an element of C, which is row-major.
    """
    m, n, k = extents
    cluster = VirtualCluster(
        (m, n),
        costs,
        workers,
        bandwidth=bandwidth,
        flops_per_element=flops_per_element,
        quantum=quantum,
    )
    run = cluster.run()
    rate = sum(worker.flop_rate for worker in workers)
    read = sum(run.bytes_read.values())
    blocks = sorted(run.blocks, key=lambda block: block.area)
    return ClusterPlan(
        m,
        n,
        k,
        dtype,
        workers=len(workers),
        gflops=rate / 1e9,
        bandwidth=bandwidth,
        tasks=len(blocks),
        largest=(blocks[-1].rows, blocks[-1].cols),
        smallest=(blocks[0].rows, blocks[0].cols),
        bytes_read=read,
        most_bytes_read=max(run.bytes_read.values()),
        bytes_written=m * n * itemsize,
        flops=m * n * flops_per_element,
        host_bytes=blocks[-1].area * itemsize,
        host_limit=memory,
        expected_seconds=run.seconds,
        efficiency=run.efficiency,
        useful_extent=useful_extent(rate, len(workers), bandwidth, costs, flops_per_element / k),
    )


def useful_extent(
    flop_rate: float, workers: int, bandwidth: float, costs: Costs, flops_per_step: float
) -> int:
    """Return m = n = k of the smallest product that is worth so many workers.

    Each has blocks of 1/8 of its share of C. These must be computed no faster than the storage
    serves them, and must take longer than a task's start. `flop_rate` counts all workers
    together, `flops_per_step` the flop of one multiply-add.
    """
    blocks = workers / MOST
    # Reading n²·k·(a + b)/s bytes with s = n/√blocks takes as long as computing.
    served = (
        (costs.a_bytes + costs.b_bytes)
        * math.sqrt(blocks)
        * flop_rate
        / (bandwidth * flops_per_step)
    )
    started = math.cbrt(LEAST_SECONDS / MOST * flop_rate / flops_per_step)
    return math.ceil(max(served, started))
