"""Submit, dry run, list and status beside 10⁴ queued jobs; and the list beside 300 event streams.

python -m bench.service_queue --jobs 10000 --requests 200
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np

from hdgemm.server import jobs
from hdgemm.server.database import open_database
from tests.server.harness import Live, make_settings, submit

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm.server.settings import Settings

A = {"path": "a.npy"}
GEMM = "/v1/processes/gemm/execution"


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


def timed(ask: Callable[[], httpx.Response], count: int) -> dict[str, Any]:
    """Send a request so many times; return the quantiles of its latency."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        answer = ask()
        took.append(1e3 * (time.perf_counter() - began))
        assert answer.status_code in {200, 201}, answer.text
    ranks = statistics.quantiles(took, n=100)
    return {"p50_ms": round(ranks[49], 2), "p99_ms": round(ranks[98], 2)}


def measure(server: Live, count: int) -> dict[str, Any]:
    """Measure each kind of request."""
    body = {"inputs": {"a": A, "b": A}}
    at = f"/v1/jobs/{submit(server.http, a=A, b=A)}"
    return {
        "submit": timed(lambda: server.http.post(GEMM, json=body), count),
        "dry run": timed(lambda: server.http.post(GEMM, json={**body, "dry_run": True}), count),
        "list": timed(lambda: server.http.get("/v1/jobs"), count),
        "status": timed(lambda: server.http.get(at), count),
    }


def beside_streams(server: Live, count: int, wanted: int) -> dict[str, Any]:
    """Measure the list beside as many event streams as the server takes, of so many asked for."""
    at = f"{server.url}/v1/jobs/{submit(server.http, a=A, b=A)}/events"
    limits = httpx.Limits(max_connections=None)
    with contextlib.ExitStack() as stack, httpx.Client(timeout=60, limits=limits) as http:
        open_streams = [stack.enter_context(http.stream("GET", at)) for _ in range(wanted)]
        accepted = sum(answer.status_code == 200 for answer in open_streams)
        return {"streams": accepted, "refused": wanted - accepted,
                **timed(lambda: server.http.get("/v1/jobs"), count)}  # fmt: skip


def main() -> None:
    """Measure and print as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--streams", type=int, default=300)
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    for count in (0, asked.jobs):
        with tempfile.TemporaryDirectory(prefix="hdgemm-queue-") as name:
            settings = make_settings(
                Path(name), max_queue=2 * asked.jobs, max_streams_per_token=256
            )
            np.save(settings.roots[0] / "a.npy", np.eye(3))
            fill(settings, count)
            server = Live(settings, "--no-worker").wait()
            try:
                found[f"{count} queued jobs"] = measure(server, asked.requests)
                if count:
                    streams = beside_streams(server, asked.requests, asked.streams)
                    found["list beside event streams"] = streams
            finally:
                server.close()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
