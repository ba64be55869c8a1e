"""Connections that begin a header and never end it: all are closed, and other clients answered.

python -m bench.campaigns.service_sockets [--sockets 1000]
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.campaigns.tally import Tally, add_save
from tests.server.harness import live, make_settings

if TYPE_CHECKING:
    from collections.abc import Sequence


def half_open(port: int, count: int) -> list[socket.socket]:
    """Open connections that begin a header and never end it."""
    held = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        connection.setblocking(False)
        held.append(connection)
    return held


def closed_after(held: list[socket.socket], began: float) -> float | None:
    """Wait until the server has closed them all; return after how many seconds, at most 40."""
    left = list(held)
    while left and time.perf_counter() - began < 40:
        left = [connection for connection in left if not _is_closed(connection)]
        time.sleep(0.1)
    return None if left else round(time.perf_counter() - began, 1)


def _is_closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Open the connections, ask beside them, and wait until all are closed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sockets", type=int, default=1000)
    add_save(parser)
    asked = parser.parse_args(arguments)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="hdgemm-sockets-") as name:
        settings = make_settings(Path(name))
        with live(settings, "--no-worker") as server:
            held, began = half_open(server.port, asked.sockets), time.perf_counter()
            for _ in range(100):
                answer = server.http.get("/v1/jobs").status_code
                tally.check(answer == 200, f"/v1/jobs answers {answer}")
            seconds = closed_after(held, began)
            tally.check(seconds is not None, "connections are still open after 40 seconds")
            for connection in held:
                connection.close()
    tally.figures |= {"sockets": asked.sockets, "closed after seconds": seconds}
    return tally.end("service_sockets", asked)


if __name__ == "__main__":
    sys.exit(main())
