"""Completions beside many parts with other bytes: a completed matrix never changes.

python -m bench.campaigns.service_upload_race [--rounds 40] [--parts 60] [--servers 2] [--seed 1]

Two servers share one database in PostgreSQL; `--servers 1` needs only SQLite.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bench.campaigns.tally import Tally, add_save
from tests.server import postgres
from tests.server.harness import Live, live, make_settings, npy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

_SHAPE: Final = (200, 150)
_PART: Final = 3000
#: A completion beside a part is asked for again; so often at most.
_MOST_TRIES: Final = 1000


@dataclass(frozen=True)
class Upload:
    """A matrix all of whose bytes are acknowledged, and which is not complete."""

    at: str
    sent: bytes

    @classmethod
    def begin(cls, http: httpx.Client, number: int) -> Upload:
        """Upload a matrix: by turns its raw elements, and a .npy file with its header."""
        array = np.random.default_rng(number).standard_normal(_SHAPE)
        whole = number % 2 == 1
        sent = npy(array) if whole else array.tobytes()
        new: dict[str, Any] = {"shape": _SHAPE, "format": "npy" if whole else "raw"}
        at = http.post("/v1/matrices", json=new).raise_for_status().headers["location"]
        http.put(f"{at}/content", content=sent).raise_for_status()
        return cls(at, sent)


class Race:
    """One completion beside parts that are sent to all servers at once."""

    def __init__(self, servers: Sequence[Live], tally: Tally, rng: random.Random) -> None:
        self._clients = [server.http for server in servers]
        self._tally = tally
        self._random = rng

    def run(self, number: int, parts: int) -> None:
        """Send `parts` parts and a completion, in every third round two and a deletion."""
        upload = Upload.begin(self._clients[0], number)
        starts = [self._random.randrange(len(upload.sent) - _PART) for _ in range(parts)]
        starts[: parts // 4] = [0] * (parts // 4)  # the header, where there is one
        deleted = number % 3 == 2
        with ThreadPoolExecutor(16) as threads:
            began = self._random.randrange(parts)
            waiting = []
            for place, start in enumerate(starts):
                if place == began:
                    waiting += [threads.submit(self._complete, upload) for _ in range(1 + deleted)]
                if deleted and place == (began + parts // 2) % parts:
                    waiting.append(threads.submit(self._delete, upload))
                waiting.append(threads.submit(self._put, upload, start))
            for each in waiting:
                each.result()
        if not deleted:
            self._look(upload, "after all parts")

    def _client(self) -> httpx.Client:
        return self._random.choice(self._clients)

    def _put(self, upload: Upload, start: int) -> None:
        """Send other bytes than those acknowledged."""
        part = bytes(255 - byte for byte in upload.sent[start : start + _PART])
        span = f"bytes {start}-{start + _PART - 1}/{len(upload.sent)}"
        headers = {"Content-Range": span}
        answer = self._client().put(f"{upload.at}/content", content=part, headers=headers)
        self._count("part", answer, {404, 409})

    def _complete(self, upload: Upload) -> None:
        for _ in range(_MOST_TRIES):
            answer = self._client().post(f"{upload.at}/complete")
            if "part-in-flight" not in answer.text:
                break
            self._tally.counts["completions tried again"] += 1
            time.sleep(0.01)
        self._count("completion", answer, {200, 404})
        if answer.status_code == 200:
            self._look(upload, "beside parts")

    def _delete(self, upload: Upload) -> None:
        self._count("deletion", self._client().delete(upload.at), {204})

    def _look(self, upload: Upload, when: str) -> None:
        """Compare bytes, ETag and SHA-256 of the completed matrix."""
        answer = self._client().get(f"{upload.at}/content")
        if answer.status_code == 404:
            return  # deleted meanwhile
        digest = hashlib.sha256(answer.content).hexdigest()
        # Before raw elements there is the header that the server wrote.
        self._tally.check(answer.content.endswith(upload.sent), f"other bytes {when}")
        self._tally.check(answer.headers.get("etag") == f'"{digest}"', f"other ETag {when}")

    def _count(self, what: str, answer: httpx.Response, allowed: set[int]) -> None:
        status = answer.status_code
        self._tally.counts[f"{what} {status}"] += 1
        self._tally.check(status in allowed, f"a {what} got {status}: {answer.text[:200]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the servers, and run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--parts", type=int, default=60)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    add_save(parser)
    asked = parser.parse_args(arguments)
    url = ""
    if asked.servers > 1:
        try:
            url = postgres.new_database()
        except postgres.NoPostgresError as why:
            print(f"several servers need PostgreSQL: {why}", file=sys.stderr)
            return 2
    tally, began = Tally(), time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hdgemm-race-"))
        settings = make_settings(Path(folder), database_url=url)
        servers = [stack.enter_context(live(settings, "--no-worker")) for _ in range(asked.servers)]
        race = Race(servers, tally, random.Random(asked.seed))
        for number in range(asked.rounds):
            race.run(number, asked.parts)
    seconds = round(time.monotonic() - began)
    tally.figures |= {"rounds": asked.rounds, "servers": asked.servers, "seconds": seconds}
    return tally.end("service_upload_race", asked)


if __name__ == "__main__":
    sys.exit(main())
