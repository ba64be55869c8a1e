"""Hostile JSON bodies of 1 kB to 1 MB: each is refused, and the server answers meanwhile.

Then many at once, of the largest size that is parsed, and of 1 kB, which shows what so many
connections cost by themselves.

python -m bench.campaigns.hostile_json [--sizes 1000 16000 1000000] [--limit 5] [--together 60]
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import httpx

from bench.campaigns.tally import Tally, add_save
from tests.server.harness import UNPOOLED, live, make_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SIZES: Final = (1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000)
_GEMM: Final = "/v1/processes/gemm/execution"
_PATHS: Final = (_GEMM, "/v1/processes/solve/execution", "/v1/matrices")
#: Seconds after which an answer counts as none.
_TIMEOUT: Final = 60.0


def _filled(begin: str, piece: Callable[[int], str], end: str, size: int) -> str:
    """Return a body of about `size` bytes whose middle consists of numbered pieces."""
    pieces, length = [], len(begin) + len(end)
    while length < size:
        pieces.append(piece(len(pieces)))
        length += len(pieces[-1]) + 1
    return begin + ",".join(pieces) + end


def _members(begin: str, end: str, value: str = "1") -> Callable[[int], str]:
    return lambda size: _filled(begin, lambda number: f'"k{number}":{value}', end, size)


def _items(item: str) -> Callable[[int], str]:
    return lambda size: _filled('{"inputs":{"a":[', lambda _: item, "]}}", size)


def _nested(opening: str, closing: str) -> Callable[[int], str]:
    def make(size: int) -> str:
        depth = size // (len(opening) + len(closing))
        return f'{{"inputs":{{"a":{opening * depth}1{closing * depth}}}}}'

    return make


def _value(begin: str, digit: str, end: str) -> Callable[[int], str]:
    return lambda size: begin + digit * (size - len(begin) - len(end)) + end


def _long_value_many_members(size: int) -> str:
    members = dict.fromkeys(map(str, range(min(900, size // 20))), 1)
    return json.dumps({"inputs": {"a": {**members, "x": "y" * max(0, size - 12 * len(members))}}})


#: By name, functions that make a body of about so many bytes.
SHAPES: Final[Mapping[str, Callable[[int], str]]] = {
    "unknown members": _members('{"inputs":{},', "}"),
    "unknown members of inputs": _members('{"inputs":{', "}}"),
    "unknown members of a union": _members('{"inputs":{"a":{', "}}}"),
    "unknown members of options": _members('{"inputs":{"options":{', "}}}"),
    "members that are objects": _members('{"inputs":{"a":{', "}}}", '{"path":{}}'),
    "duplicate members": lambda size: _filled(
        '{"inputs":{', lambda _: '"a":{"path":"a.npy"}', "}}", size
    ),
    "many and a long one": _long_value_many_members,
    "empty lists": _items("[]"),
    "empty objects": _items("{}"),
    "long integers": _items("9" * 4000),
    "long floats": _items("0." + "3" * 4000),
    "wrong devices": lambda size: _filled(
        '{"inputs":{"options":{"devices":[', lambda _: '"x"', "]}}}", size
    ),
    "nested lists": _nested("[", "]"),
    "nested objects": _nested('{"a":', "}"),
    "unclosed lists": _value('{"inputs":', "[", ""),
    "one integer": _value('{"inputs":{"alpha":', "7", "}}"),
    "one fraction": _value('{"inputs":{"alpha":0.', "7", "}}"),
    "one exponent": _value('{"inputs":{"alpha":1e', "7", "}}"),
    "one text": _value('{"inputs":{"a":{"path":"', "a", '"}}}'),
    "one name": _value('{"inputs":{"', "a", '":1}}'),
    "escapes": lambda size: '{"inputs":{"a":"' + "\\ud800" * (size // 6) + '"}}',
    "blanks": _value('{"inputs":', " ", "{}}"),
    "unclosed text": _value('{"inputs":"', "a", ""),
}


@dataclass
class Healthz:
    """Asks for /healthz again and again, from a thread, until it is closed."""

    url: str
    slowest: float = 0.0
    asked: int = 0
    failed: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        with httpx.Client(base_url=self.url, timeout=_TIMEOUT) as http:
            while not self._stop.wait(0.005):
                began = time.perf_counter()
                try:
                    answer = str(http.get("/healthz").status_code)
                except httpx.TransportError as error:
                    answer = repr(error)
                self.slowest = max(self.slowest, time.perf_counter() - began)
                self.asked += 1
                if answer != "200":
                    self.failed.append(answer)


def send(http: httpx.Client, path: str, body: str) -> tuple[str, float]:
    """Send a body; return the status, or the error, and the seconds until the answer."""
    began = time.perf_counter()
    try:
        answer = http.post(
            path, content=body.encode(), headers={"Content-Type": "application/json"}
        )
        told = str(answer.status_code)
        if answer.headers["content-type"] != "application/problem+json":
            told += " without a problem document"
    except httpx.TransportError as error:
        told = repr(error)
    return told, time.perf_counter() - began


def send_together(url: str, count: int, size: int, tally: Tally) -> float:
    """Send bodies of each shape at once; return the seconds of the slowest /healthz meanwhile."""
    with (
        httpx.Client(base_url=url, timeout=_TIMEOUT, limits=UNPOOLED) as http,
        ThreadPoolExecutor(count) as pool,
        Healthz(url) as health,
    ):
        for shape, make in SHAPES.items():
            body = make(size - 100)
            for told, _ in pool.map(lambda _: send(http, _GEMM, body), range(count)):  # noqa: B023
                tally.counts[told] += 1
                tally.check(told in {"400", "413", "422"}, f"{shape}, {count} at once: {told}")
    tally.check(not health.failed, f"/healthz: {health.failed[:3]}")
    return health.slowest


def main(arguments: Sequence[str] | None = None) -> int:
    """Send every shape in every size to every path, beside requests for /healthz."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=_SIZES)
    parser.add_argument("--limit", type=float, default=5.0, help="seconds that are too slow")
    parser.add_argument("--together", type=int, default=60, help="bodies that come at once")
    add_save(parser)
    asked = parser.parse_args(arguments)
    tally, slowest = Tally(), dict.fromkeys(SHAPES, 0.0)
    with (
        tempfile.TemporaryDirectory(prefix="hdgemm-json-") as name,
        live(make_settings(Path(name)), "--no-worker") as server,
    ):
        send(server.http, _GEMM, "{}")  # schemas are made once
        with Healthz(server.url) as health:
            for shape, make in SHAPES.items():
                bodies = [make(size) for size in asked.sizes]
                for body, path in itertools.product(bodies, _PATHS):
                    told, seconds = send(server.http, path, body)
                    slowest[shape] = max(slowest[shape], seconds)
                    tally.counts[told] += 1
                    good = told in {"400", "413", "422"} and seconds < asked.limit
                    what = f"{shape}, {len(body)} bytes to {path}: {told}"
                    tally.check(good, f"{what} after {seconds:.1f} s")
        largest = server.settings.max_json_bytes
        together = {
            f"slowest_healthz_ms_beside_{asked.together}_of_{size}_bytes": round(
                1e3 * send_together(server.url, asked.together, size, tally), 1
            )
            for size in (1000, largest)
        }
    tally.counts["healthz"] = health.asked
    tally.check(not health.failed, f"/healthz: {health.failed[:3]}")
    tally.check(health.slowest < asked.limit, f"/healthz took {health.slowest:.1f} s")
    tally.figures |= together
    tally.figures |= {
        "slowest_ms": round(1e3 * max(slowest.values()), 1),
        "slowest_healthz_ms": round(1e3 * health.slowest, 1),
        "slowest_ms_by_shape": {
            shape: round(1e3 * seconds, 1) for shape, seconds in slowest.items()
        },
    }
    return tally.end("hostile_json", asked)


if __name__ == "__main__":
    sys.exit(main())
