"""Status requests beside a running job, and 1000 half-open sockets beside both.

python -m bench.service_load --rate 500 --seconds 10
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import harness
from bench.campaigns.service_queue import bare_server
from bench.campaigns.service_sockets import closed_after, half_open
from tests.server.harness import Live, make_settings, submit, wait_until
from tests.server.numpy_library import DELAY

_REAL = "hdgemm.server.hdgemm_backend:HdgemmLibrary"


async def load(port: int, path: str, rate: int, seconds: float, connections: int) -> dict[str, Any]:
    """Ask `rate` times a second, on time whether answers come or not; return the latencies.

    Latency counts from when a request was due, so that a stall is seen by all it delays.
    """
    queue: asyncio.Queue[float | None] = asyncio.Queue()
    took: list[float] = []
    bad = 0
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()

    async def ask() -> None:
        nonlocal bad
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer):
            while (due := await queue.get()) is not None:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                took.append(time.perf_counter() - due)
                bad += not head.startswith(b"HTTP/1.1 200")

    tasks = [asyncio.create_task(ask()) for _ in range(connections)]
    began = time.perf_counter()
    for number in range(int(rate * seconds)):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        queue.put_nowait(due)
    for _ in tasks:
        queue.put_nowait(None)
    await asyncio.gather(*tasks)
    elapsed = time.perf_counter() - began
    ranks = statistics.quantiles(took, n=100)
    return {
        "requests": len(took), "bad": bad, "per_second": round(len(took) / elapsed, 1),
        "p50_ms": round(1e3 * ranks[49], 2), "p99_ms": round(1e3 * ranks[98], 2),
        "max_ms": round(1e3 * max(took), 2),
    }  # fmt: skip


def bare(rate: int, seconds: float) -> dict[str, Any]:
    """Measure the framework without the service."""
    with bare_server() as client:
        return asyncio.run(load(client.base_url.port or 0, "/job/0", rate, seconds, 16))


def start_job(server: Live, folder: Path) -> str:
    """Submit a product that takes longer than the measurement; return its id once it runs."""
    rng = np.random.default_rng(1)
    for name in ("a", "b"):
        np.save(folder / f"{name}.npy", rng.standard_normal((9000, 9000)))
    job_id = submit(server.http, a={"path": "a.npy"}, b={"path": "b.npy"})

    def multiplies() -> bool:
        job = server.http.get(f"/v1/jobs/{job_id}").json()
        return bool(job["phase"] == "multiplying" and job["detail"])

    wait_until(multiplies, 60)
    return job_id


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--half-open", type=int, default=1000)
    asked = parser.parse_args()
    rate, seconds, where = asked.rate, asked.seconds, harness.environment()
    os.environ.pop(DELAY, None)
    found: dict[str, Any] = {"bare, idle machine": bare(rate, seconds)}
    with tempfile.TemporaryDirectory(prefix="hdgemm-load-") as name:
        settings = make_settings(Path(name), library=_REAL, memory=2 << 30, lease_seconds=20.0)
        server = Live(settings).wait()
        try:
            job_id = start_job(server, settings.roots[0])
            path = f"/v1/jobs/{job_id}"
            found["bare, while a job runs"] = bare(rate, seconds)
            found["status, while a job runs"] = asyncio.run(
                load(server.port, path, rate, seconds, 16)
            )
            held, began = half_open(server.port, asked.half_open), time.perf_counter()
            found[f"status, beside {len(held)} half-open sockets"] = asyncio.run(
                load(server.port, path, rate, 5.0, 16)
            )
            found["half-open sockets all closed after seconds"] = closed_after(held, began)
            found["job meanwhile"] = server.http.get(path).json()["status"]
            server.http.post(f"{path}/cancel")
        finally:
            server.close()
    print(json.dumps(found, indent=2))
    harness.save("service_load", found, where)


if __name__ == "__main__":
    main()
