"""One report of all workers, and snapshots of the run, made from receipts."""

from __future__ import annotations

import time
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from hdgemm.energy import Energy
from hdgemm.pipeline.timeline import Timeline
from hdgemm.progress import Progress
from hdgemm.report import Report, sum_stages, versions
from hdgemm.run.regions import Cells
from hdgemm.run.split_report import Share, SplitReport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.cluster._checkpoint import ClusterCheckpoint
    from hdgemm.cluster._coordinator import Coordinator
    from hdgemm.cluster._job import WorkerInfo
    from hdgemm.cluster.receipts import Receipt
    from hdgemm.pipeline.timeline import Event
    from hdgemm.progress import Callbacks

#: Rows and columns of the map of C; a character of a terminal is about twice as high as wide.
_CELLS: Final = (16, 48)


def label_of(address: str, workers: Mapping[str, WorkerInfo]) -> str:
    """Return a worker's name in reports: Dask's, or its address where it has no other."""
    info = workers.get(address)
    plain = address.partition("://")[2] or address
    if info is None or info.name == address:
        return plain
    return f"{info.host}/{info.name}"


class ClusterProgress:
    """Turns the state of a coordinator into snapshots, and events into calls of the observer.

    C has `shape` as it is stored.
    """

    def __init__(self, callbacks: Callbacks, shape: tuple[int, int]) -> None:
        self._callbacks = callbacks
        self._began = time.perf_counter()
        self._shown = self._flops = 0
        self._cells = Cells(*shape, most=_CELLS)
        #: The number of each worker in the map of C, by its label.
        self._numbers: dict[str, int] = {}

    def __call__(self, coordinator: Coordinator) -> None:
        """Show what has been finished since the last call."""
        receipts = coordinator.receipts
        new, self._shown = receipts[self._shown :], len(receipts)
        if self._callbacks.observer is not None:
            for receipt in new:
                for event in receipt.events:
                    self._callbacks.observer(event)
        if self._callbacks.progress is None:
            return
        for receipt in new:
            label = label_of(receipt.worker, coordinator.workers.known)
            self._cells.mark(self._numbers.setdefault(label, len(self._numbers)), receipt.block)
        self._flops += sum(receipt.flops for receipt in new)
        elapsed, part = time.perf_counter() - self._began, coordinator.part_done
        own = part - coordinator.part_before
        self._callbacks.progress(
            Progress(
                percent=100.0 * part,
                gflops=self._flops / elapsed / 1e9 if elapsed else 0.0,
                elapsed=elapsed,
                eta=elapsed * (1 - part) / own if own > 0 else None,
                limit=None,
                steps=len(receipts),
                total_steps=len(receipts) + coordinator.on_the_way,
                tiles=self._cells.grid(self._numbers),
            )
        )


def merged_report(
    extents: Mapping[str, Any],
    coordinator: Coordinator | None,
    durable: ClusterCheckpoint,
) -> Report:
    """Return the report of a run on a cluster; without a coordinator, of one finished before.

    `extents` are m, n, k and dtype of the product.
    """
    receipts = coordinator.receipts if coordinator is not None else []
    seconds = coordinator.seconds if coordinator is not None else 0.0
    known = coordinator.workers.known if coordinator is not None else {}
    labels = {receipt.worker: label_of(receipt.worker, known) for receipt in receipts}
    began = coordinator.began if coordinator is not None else 0.0
    events: list[Event] = []
    for receipt in receipts:
        offset = coordinator.workers.offsets.get(receipt.worker, 0.0) if coordinator else 0.0
        events += _moved(receipt, labels[receipt.worker], receipt.began + offset - began)
    workers = max(1, len(set(labels.values())))
    stages = {
        name: replace(stage, seconds=stage.seconds / workers)  # the mean over the workers
        for name, stage in sum_stages(receipt.stages for receipt in receipts).items()
    }
    flops = sum(stage.flops for stage in stages.values())
    return Report(
        seconds=seconds,
        gflops=flops / seconds / 1e9 if seconds > 0 else 0.0,
        stages=MappingProxyType(stages),
        peak_memory_bytes=_peaks(receipts),
        plan=MappingProxyType(_summary(extents, receipts, known)),
        devices=tuple(dict.fromkeys(labels.values())),
        versions=MappingProxyType(versions()),
        timeline=Timeline(tuple(sorted(events, key=lambda event: event.start)), seconds),
        resumption=durable.resumption,
        split=None if coordinator is None else _split(coordinator, labels),
        energy=Energy(
            missing={
                "workers": "their machines' counters are not collected; read them "
                "there, as hdgemm.energy.EnergyMeter does"
            }
        ),
    )


def _moved(receipt: Receipt, label: str, start: float) -> list[Event]:
    """Return a receipt's events on the client's clock; each work unit of the trace is a block."""
    return [
        event._replace(
            device=label,
            unit=receipt.number,
            start=max(0.0, event.start + start),
            end=max(0.0, event.end + start),
        )
        for event in receipt.events
    ]


def _peaks(receipts: Sequence[Receipt]) -> int | None:
    """Return the sum of the workers' peaks."""
    peaks: dict[str, int] = {}
    for receipt in receipts:
        peaks[receipt.worker] = max(receipt.peak_memory, peaks.get(receipt.worker, 0))
    return sum(peaks.values()) if peaks else None


def _summary(
    extents: Mapping[str, Any], receipts: Sequence[Receipt], known: Mapping[str, WorkerInfo]
) -> dict[str, Any]:
    took_part = {receipt.worker for receipt in receipts}
    return {
        **extents,
        "strategy": "cluster",
        "in_place": False,
        "workers": len(took_part),
        "blocks": len(receipts),
        "host_limit": sum(known[address].memory for address in took_part if address in known),
    }


def _split(coordinator: Coordinator, labels: Mapping[str, str]) -> SplitReport:
    """Describe which worker computed which blocks, and how evenly the run ended."""
    by_label: dict[str, list[Receipt]] = {}
    for receipt in coordinator.receipts:
        by_label.setdefault(labels[receipt.worker], []).append(receipt)
    known = coordinator.workers.known
    total = sum(known[address].flop_rate for address in labels) or 1.0
    present = set(coordinator.pool.workers)
    shares = {}
    for label, own in by_label.items():
        address = own[-1].worker
        offset = coordinator.workers.offsets[address] - coordinator.began
        began = min(receipt.began for receipt in own) + offset
        finished = max(receipt.began + receipt.seconds for receipt in own) + offset
        elements = sum(receipt.block.area for receipt in own)
        flops = sum(receipt.flops for receipt in own)
        multiplied = sum_stages(receipt.stages for receipt in own).get("mult1")
        busy = multiplied.seconds if multiplied is not None else 0.0
        shares[label] = Share(
            planned=known[address].flop_rate / total,
            used=elements / coordinator.elements,
            elements=elements,
            flop_rate=flops / (finished - began) if finished > began else 0.0,
            kernel_rate=flops / busy if busy > 0 else 0.0,
            began=began,
            finished=finished,
            tiles=tuple(receipt.block for receipt in own),
            failed=address not in present,
        )
    done = sum(receipt.flops for receipt in coordinator.receipts)
    return SplitReport.of(shares, done, coordinator.seconds)
