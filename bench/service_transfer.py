"""1 GB up and down against a plain file copy over the same loopback HTTP; the server's memory.

python -m bench.service_transfer --gigabytes 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from bench import harness
from tests.ports import reserved_port
from tests.server.harness import Live, make_settings, wait_until

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


def plain(folder: Path, source: Path, size: int) -> dict[str, float]:
    """Measure the plain copy."""
    with reserved_port() as port:
        process = subprocess.Popen([sys.executable, "-c", _PLAIN, str(port), str(folder / "plain")])
        try:
            wait_until(lambda: psutil.Process(process.pid).net_connections("tcp"))
            up = asyncio.run(send(port, "/f", source, 0, size, size))
            down, count = asyncio.run(receive(port, "/f"))
        finally:
            process.terminate()
            process.wait()
    if count != size:
        raise RuntimeError(f"{count} bytes came back of {size}")
    return {"up": size / up / 1e6, "down": size / down / 1e6}


def service(folder: Path, source: Path, size: int) -> dict[str, Any]:
    """Measure the service: one part, fsync and all; and the same in 64 parts."""
    server = Live(make_settings(folder, memory=1 << 30), "--no-worker").wait()
    memory = Memory(server.process.pid)
    found: dict[str, Any] = {}
    try:
        side = size // 8
        for name, pieces in (("up", 1), ("up in 64 parts", 64)):
            new = server.http.post("/v1/matrices", json={"shape": [1, side]})
            at = f"{new.headers['location']}/content"
            step = size // pieces
            began = time.perf_counter()
            for start in range(0, size, step):
                work = send(server.port, at, source, start, min(start + step, size), size)
                asyncio.run(watched(memory, work))
            found[name] = size / (time.perf_counter() - began) / 1e6
        began = time.perf_counter()
        done = server.http.post(at.replace("content", "complete"), timeout=120)
        found["complete (SHA-256) seconds"] = time.perf_counter() - began
        if not done.json()["complete"]:
            raise RuntimeError(done.text)
        taken, _ = asyncio.run(watched(memory, receive(server.port, at)))
        found["down"] = size / taken / 1e6
    finally:
        server.close()
    found["server's memory before, bytes"] = memory.before
    found["server's memory at most, bytes"] = memory.most
    return found


def main() -> None:
    """Measure and save; rates in MB/s."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    where = harness.environment()
    size = int(parser.parse_args().gigabytes * 1e9) // 512 * 512
    with tempfile.TemporaryDirectory(prefix="hdgemm-transfer-") as name:
        folder = Path(name)
        source = folder / "source"
        with source.open("wb") as file:
            block = os.urandom(_CHUNK)
            for _ in range(0, size, _CHUNK):
                file.write(block)
            file.truncate(size)
        copied = plain(folder, source, size)
        served = service(folder, source, size)
    ratios = {way: round(served[way] / copied[way], 3) for way in ("up", "down")}
    found = {"plain": copied, "service": served, "share of plain": ratios}
    print(json.dumps(found, indent=2))
    harness.save("service_transfer", found, where)


if __name__ == "__main__":
    main()
