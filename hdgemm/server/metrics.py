"""Metrics for Prometheus: queue, phases, bytes, speed, devices and disk."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hdgemm.server.tables import UNFINISHED, Job, StoredMatrix, WorkerRow

if TYPE_CHECKING:
    from starlette.types import Message, Scope, Send

    from hdgemm.server.database import Database
    from hdgemm.server.settings import Settings

#: Others are counted as one: every label stays in memory, and clients can invent methods.
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

#: Finished jobs among which the last one with a measurement of energy is sought.
_LAST_JOBS: Final = 20


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._registry = CollectorRegistry()
        reg = self._registry
        self._requests = Counter(
            "hdgemm_requests_total", "Answered requests.", ("method", "status"), registry=reg
        )
        self._seconds = Histogram(
            "hdgemm_request_seconds", "Seconds until an answer began.", registry=reg
        )
        self.bytes_in = Counter("hdgemm_upload_bytes_total", "Bytes uploaded.", registry=reg)
        self._bytes_out = Counter("hdgemm_answer_bytes_total", "Bytes answered.", registry=reg)
        self._jobs = Gauge("hdgemm_jobs", "Jobs.", ("process", "status"), registry=reg)
        self._phases = Gauge("hdgemm_phase_jobs", "Unfinished jobs.", ("phase",), registry=reg)
        self._gflops = Gauge("hdgemm_gflops", "10⁹ flop/s of all running jobs.", registry=reg)
        self._per_watt = Gauge(
            "hdgemm_gflops_per_watt",
            "10⁹ flop/s per watt of the last job, if measured.",
            ("process",),
            registry=reg,
        )
        self._unmeasured = Gauge(
            "hdgemm_energy_not_measured",
            "Energy counters that the last job could not read.",
            ("source", "reason"),
            registry=reg,
        )
        self._held = Gauge("hdgemm_held_bytes", "Host memory of running jobs.", registry=reg)
        self._disk = Gauge("hdgemm_disk_bytes", "Data folder's disk.", ("kind",), registry=reg)
        self._stored = Gauge("hdgemm_matrix_bytes", "Bytes of uploaded matrices.", registry=reg)
        self._devices = Gauge("hdgemm_devices", "Devices of workers.", ("device",), registry=reg)
        self._memory = Gauge("hdgemm_worker_memory_bytes", "Memory of workers.", registry=reg)

    def watch(self, scope: Scope, send: Send) -> Send:
        """Count one request's answer."""
        began = time.perf_counter()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in _METHODS else "other"
                self._requests.labels(method, message["status"]).inc()
                self._seconds.observe(time.perf_counter() - began)
            else:
                self._bytes_out.inc(len(message.get("body", b"")))
            await send(message)

        return sending

    def text(self) -> bytes:
        """Return all metrics; the database's are read now."""
        for gauge in (self._jobs, self._phases, self._devices, self._per_watt, self._unmeasured):
            gauge.clear()
        with self._database.read() as conn:
            self._read_jobs(conn)
            self._read_energy(conn)
            self._read_workers(conn)
            total = conn.execute(sa.select(sa.func.sum(StoredMatrix.size))).scalar()
            self._stored.set(int(total or 0))
        usage = shutil.disk_usage(self._settings.data_dir)
        for kind, value in zip(("total", "used", "free"), usage, strict=True):
            self._disk.labels(kind).set(value)
        return generate_latest(self._registry)

    def _read_jobs(self, conn: sa.Connection) -> None:
        counted = sa.select(Job.process, Job.status, sa.func.count())
        for process, status, count in conn.execute(counted.group_by(Job.process, Job.status)):
            self._jobs.labels(process, status).set(count)
        phases = sa.select(Job.phase, sa.func.count()).where(Job.status.in_(UNFINISHED))
        for phase, count in conn.execute(phases.group_by(Job.phase)):
            self._phases.labels(phase).set(count)
        running = sa.select(Job.progress, Job.host_bytes).where(Job.status == "running")
        rows = conn.execute(running).all()
        self._gflops.set(sum((row.progress or {}).get("gflops", 0.0) for row in rows))
        self._held.set(sum(row.host_bytes for row in rows))

    def _read_energy(self, conn: sa.Connection) -> None:
        """Read the energy of the last job whose report has it."""
        last = sa.select(Job.process, Job.report).where(Job.status == "successful")
        for process, report in conn.execute(last.order_by(Job.finished.desc()).limit(_LAST_JOBS)):
            energy = (report or {}).get("energy")
            if energy is None:
                continue
            if energy["gflops_per_watt"] is not None:
                self._per_watt.labels(process).set(energy["gflops_per_watt"])
            for source, reason in energy["missing"].items():
                self._unmeasured.labels(source, reason).set(1)
            return

    def _read_workers(self, conn: sa.Connection) -> None:
        memory = 0
        for row in conn.execute(sa.select(WorkerRow.devices, WorkerRow.memory)):
            memory += row.memory
            for device in row.devices:
                self._devices.labels(device).inc()
        self._memory.set(memory)
