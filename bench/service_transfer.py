"""1 GB up and down against a plain file copy over the same loopback HTTP; the server's memory.

Service and plain copy go by turns; one more download, and uploads, watch the server's memory.

python -m bench.service_transfer --gigabytes 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from operator import truediv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bench import harness
from tests.ports import reserved_port
from tests.server.harness import Live, live, make_settings, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 1 << 20
#: The plain copy: the same HTTP server, a body straight into a file and a file straight out.
_PLAIN = """
import os, sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse, Response
from starlette.routing import Route
FILE = sys.argv[2]
async def put(request):
    with open(FILE, "wb") as file:
        async for chunk in request.stream():
            file.write(chunk)
        os.fsync(file.fileno())
    return Response()
async def get(request):
    answer = FileResponse(FILE)
    answer.chunk_size = 1 << 20
    return answer
app = Starlette(routes=[Route("/f", put, methods=["PUT"]), Route("/f", get)])
uvicorn.run(app, port=int(sys.argv[1]), access_log=False, log_level="error", http="h11", ws="none")
"""


async def send(port: int, path: str, source: Path, start: int, stop: int, size: int) -> float:
    """PUT a range of a file; return the seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.perf_counter()
    writer.write(
        f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {stop - start}\r\n"
        f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n\r\n".encode()
    )
    with source.open("rb") as file:
        file.seek(start)
        for position in range(start, stop, _CHUNK):
            writer.write(file.read(min(_CHUNK, stop - position)))
            await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    taken = time.perf_counter() - began
    writer.close()
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise RuntimeError(head.decode())
    return taken


async def receive(port: int, path: str) -> tuple[float, int]:
    """GET a file and throw it away; return the seconds and its bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_CHUNK)
    began = time.perf_counter()
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    count = 0
    while data := await reader.read(_CHUNK):
        count += len(data)
    writer.close()
    return time.perf_counter() - began, count


class Memory:
    """The most memory a process was seen to hold of its own."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.before = self._now()
        self.most = self.before

    def _now(self) -> int:
        info = self._process.memory_full_info()
        return int(info.uss)

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            self.most = max(self.most, self._now())
            await asyncio.sleep(0.05)


async def watched(memory: Memory, work: Any) -> Any:
    """Run `work` while memory is watched."""
    watcher = asyncio.create_task(memory.watch())
    try:
        return await work
    finally:
        watcher.cancel()


@contextmanager
def plain_server(folder: Path) -> Iterator[int]:
    """Serve the plain copy; yield the port."""
    with reserved_port() as port:
        process = subprocess.Popen([sys.executable, "-c", _PLAIN, str(port), str(folder / "plain")])
        try:
            wait_until(lambda: psutil.Process(process.pid).net_connections("tcp"))
            yield port
        finally:
            process.terminate()
            process.wait()


def upload(
    server: Live, source: Path, size: int, pieces: int = 1, memory: Memory | None = None
) -> tuple[str, float]:
    """Upload a matrix in parts, fsync and all; return the address of its content, and seconds."""
    new = server.http.post("/v1/matrices", json={"shape": [1, size // 8]})
    at = f"{new.headers['location']}/content"
    step = size // pieces
    began = time.perf_counter()
    for start in range(0, size, step):
        work = send(server.port, at, source, start, min(start + step, size), size)
        asyncio.run(work if memory is None else watched(memory, work))
    return at, time.perf_counter() - began


def complete(server: Live, at: str) -> float:
    """Complete an upload; return the seconds, in which the server computes its SHA-256."""
    began = time.perf_counter()
    done = server.http.post(at.replace("content", "complete"), timeout=120)
    taken = time.perf_counter() - began
    if not done.json()["complete"]:
        raise RuntimeError(done.text)
    return taken


def download(port: int, path: str, size: int) -> float:
    """Return the seconds of a download."""
    taken, count = asyncio.run(receive(port, path))
    if count < size:
        raise RuntimeError(f"{count} bytes came back of {size}")
    return taken


def measure(folder: Path, source: Path, size: int, rounds: int) -> dict[str, Any]:
    """Measure service and plain copy by turns; rates are medians in MB/s."""
    seconds: dict[str, dict[str, list[float]]] = {
        who: {"up": [], "down": []} for who in ("plain", "service")
    }
    settings = make_settings(folder, memory=1 << 30)
    with plain_server(folder) as port, live(settings, "--no-worker") as server:
        memory = Memory(server.process.pid)
        for _ in range(rounds):
            up = asyncio.run(send(port, "/f", source, 0, size, size))
            seconds["plain"]["up"].append(up)
            at, up = upload(server, source, size)
            seconds["service"]["up"].append(up)
            completed = complete(server, at)
            seconds["plain"]["down"].append(download(port, "/f", size))
            seconds["service"]["down"].append(download(server.port, at, size))
            asyncio.run(watched(memory, receive(server.port, at)))
            server.http.delete(at.replace("/content", ""))
        _, parts = upload(server, source, size, 64, memory)
    shares = {
        way: sorted(map(truediv, seconds["plain"][way], seconds["service"][way]))
        for way in ("up", "down")
    }
    rates = {
        who: {way: size / statistics.median(taken) / 1e6 for way, taken in ways.items()}
        for who, ways in seconds.items()
    }
    return {
        "plain": rates["plain"],
        "service": rates["service"]
        | {
            "up in 64 parts": size / parts / 1e6,
            "complete (SHA-256) seconds": completed,
            "server's memory before, bytes": memory.before,
            "server's memory at most, bytes": memory.most,
        },
        "share of plain": {way: statistics.median(each) for way, each in shares.items()},
        "least and most": {way: [each[0], each[-1]] for way, each in shares.items()},
    }


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    where = harness.environment()
    size = int(given.gigabytes * 1e9) // 512 * 512
    with tempfile.TemporaryDirectory(prefix="hdgemm-transfer-") as name:
        folder = Path(name)
        source = folder / "source"
        with source.open("wb") as file:
            block = os.urandom(_CHUNK)
            for _ in range(0, size, _CHUNK):
                file.write(block)
            file.truncate(size)
        found = measure(folder, source, size, given.rounds)
    print(json.dumps(found, indent=2))
    harness.save("service_transfer", found, where)


if __name__ == "__main__":
    main()
