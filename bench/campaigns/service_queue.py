"""Submit, dry run, list and status beside 10⁴ queued jobs; and the list beside event streams.

python -m bench.campaigns.service_queue [--jobs 10000] [--requests 200] [--streams 300]

Every request is followed by one to a server that runs the framework alone, with one route and a
constant answer: its latencies show how busy the machine is. A request is too slow where its p99
is above 50 ms and above 25 times the bare framework's, which is 2 ms on an idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np

from bench.campaigns.tally import Tally, add_save
from hdgemm.server import jobs
from hdgemm.server.database import open_database
from tests.ports import reserved_port
from tests.server.harness import Live, make_settings, submit, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hdgemm.server.settings import Settings

A = {"path": "a.npy"}
GEMM = "/v1/processes/gemm/execution"
MOST_MS, MOST_RATIO = 50.0, 25.0
#: The framework alone, with the protocol that the service uses.
BARE = """
import sys, uvicorn
from fastapi import FastAPI
from starlette.responses import JSONResponse
app = FastAPI()
@app.get("/job/{job_id}")
async def job(job_id: str) -> JSONResponse:
    return JSONResponse({"jobID": job_id, "status": "running"})
uvicorn.run(app, port=int(sys.argv[1]), access_log=False, log_level="error", http="h11", ws="none")
"""


@contextlib.contextmanager
def bare_server() -> Iterator[httpx.Client]:
    """Run the framework alone; give a client of it."""
    with reserved_port() as port:
        process = subprocess.Popen([sys.executable, "-c", BARE, str(port)])
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
                wait_until(lambda: client.get("/job/0").status_code == 200)
                yield client
        finally:
            process.terminate()
            process.wait()


def fill(settings: Settings, count: int) -> None:
    """Queue jobs straight into the database; half of them name their output."""
    database = open_database(settings)
    root = settings.roots[0]
    with database.queue() as conn:
        now = database.now(conn)
        for number in range(count):
            path = str(root / f"c{number}.npy") if number % 2 else None
            submission = jobs.Submission(
                owner="", name=f"{number}", priority=0, request_digest="", idempotency_key=None
            )
            admission = jobs.Admission(
                process="gemm", inputs={"options": {}}, plan={"m": 3, "n": 3, "k": 3},
                output={"path": path, "shape": [3, 3], "dtype": "float64"},
                volume=str(root) if path else None, host_bytes=100, disk_bytes=4168,
                devices=("auto",),
            )  # fmt: skip
            jobs.insert(conn, submission, admission, now)
    database.close()


class Latencies:
    """Measures requests to the service and to the bare framework in turns."""

    def __init__(self, bare: httpx.Client, count: int, tally: Tally) -> None:
        self._bare, self._count, self._tally = bare, count, tally

    def measure(self, what: str, ask: Callable[[], httpx.Response]) -> dict[str, Any]:
        """Return quantiles of both in milliseconds; check the 99th percentile."""
        took: list[float] = []
        bare: list[float] = []
        for _ in range(self._count):
            self._tally.check(_timed(ask, took) in {200, 201}, f"{what}: a request was refused")
            _timed(lambda: self._bare.get("/job/0"), bare)
        ours, theirs = (statistics.quantiles(times, n=100) for times in (took, bare))
        late = ours[98] > max(MOST_MS, MOST_RATIO * theirs[98])
        self._tally.check(not late, f"{what}: p99 {ours[98]:.1f} ms, bare {theirs[98]:.1f} ms")
        return {
            "p50_ms": round(ours[49], 2), "p99_ms": round(ours[98], 2),
            "bare_p50_ms": round(theirs[49], 2), "bare_p99_ms": round(theirs[98], 2),
        }  # fmt: skip


def _timed(ask: Callable[[], httpx.Response], took: list[float]) -> int:
    began = time.perf_counter()
    status = ask().status_code
    took.append(1e3 * (time.perf_counter() - began))
    return status


def ask_all(server: Live, latencies: Latencies, queued: int) -> dict[str, Any]:
    """Measure each kind of request."""
    body = {"inputs": {"a": A, "b": A}}
    at = f"/v1/jobs/{submit(server.http, a=A, b=A)}"
    requests: dict[str, Callable[[], httpx.Response]] = {
        "submit": lambda: server.http.post(GEMM, json=body),
        "dry run": lambda: server.http.post(GEMM, json={**body, "dry_run": True}),
        "list": lambda: server.http.get("/v1/jobs"),
        "status": lambda: server.http.get(at),
    }
    return {
        name: latencies.measure(f"{name} beside {queued} jobs", ask)
        for name, ask in requests.items()
    }


def beside_streams(server: Live, latencies: Latencies, wanted: int) -> dict[str, Any]:
    """Measure the list beside as many event streams as the server takes."""
    at = f"{server.url}/v1/jobs/{submit(server.http, a=A, b=A)}/events"
    limits = httpx.Limits(max_connections=None)
    with contextlib.ExitStack() as stack, httpx.Client(timeout=60, limits=limits) as http:
        answers = [stack.enter_context(http.stream("GET", at)) for _ in range(wanted)]
        accepted = sum(answer.status_code == 200 for answer in answers)
        measured = latencies.measure(
            f"list beside {accepted} event streams", lambda: server.http.get("/v1/jobs")
        )
    return {"streams": accepted, "refused": wanted - accepted, **measured}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure with an empty queue and with a full one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--streams", type=int, default=300)
    add_save(parser)
    asked = parser.parse_args(arguments)
    tally = Tally()
    with bare_server() as bare:
        latencies = Latencies(bare, asked.requests, tally)
        for count in (0, asked.jobs):
            with tempfile.TemporaryDirectory(prefix="hdgemm-queue-") as name:
                settings = make_settings(
                    Path(name),
                    max_queue=2 * asked.jobs + 4 * asked.requests,
                    max_streams_per_token=256,
                )
                np.save(settings.roots[0] / "a.npy", np.eye(3))
                fill(settings, count)
                server = Live(settings, "--no-worker").wait()
                try:
                    tally.figures[f"{count} queued jobs"] = ask_all(server, latencies, count)
                    if count:
                        streams = beside_streams(server, latencies, asked.streams)
                        tally.figures["list beside event streams"] = streams
                finally:
                    server.close()
    return tally.end("service_queue", asked)


if __name__ == "__main__":
    sys.exit(main())
