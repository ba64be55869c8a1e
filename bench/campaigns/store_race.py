"""Two processes create one new array, in an object store and in a local Zarr store.

python -m bench.campaigns.store_race [--rounds 120] [--seed 0]

Each of two processes multiplies another A by B into the same new array, of 20 chunks. By chance one
or both are killed or cancelled at a random moment. Then the array, if it is there, must be one of
the two products as a whole, of a process that has reported success; and the same command, given
again, stores its product, or is refused by an object store that has the array. The object store is
moto's, which answers one request at a time, so that its conditional puts are atomic.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.campaigns.tally import Tally, add_save
from hdgemm.blas.products import multiply
from hdgemm.errors import CancelledRunError, HdgemmError
from hdgemm.matrices import zarr_draft
from hdgemm.matrices.operands import open as open_stored
from hdgemm.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

M, N, K = 160, 128, 48
TILE = (32, 32, 48)
BUCKET = "race"
#: Seconds after which a process that neither ends nor fails is wrong.
LONGEST = 120.0
FATES = ("ends", "ends", "is cancelled", "is killed")


def operands(number: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return A and B of one process."""
    rng = np.random.default_rng(number)
    return rng.standard_normal((M, K)), np.random.default_rng(9).standard_normal((K, N))


def child(number: int, where: str, link: Connection) -> None:
    """Compute the product; say when the run begins, and its outcome; a message cancels it."""
    zarr_draft.CHUNK = (32, 32)  # type: ignore[misc]
    cancel = threading.Event()

    def listen() -> None:
        try:
            link.recv()
        except EOFError:
            return
        cancel.set()

    threading.Thread(target=listen, daemon=True).start()
    a, b = operands(number)
    link.send("begun")
    try:
        multiply(
            a, b, out=where, cancel=cancel, options=Options(tile=TILE, devices="host", threads=1)
        )
    except CancelledRunError:
        outcome = "cancelled"
    except HdgemmError as error:
        outcome = f"refused: {error}"
    except BaseException as error:  # noqa: BLE001 - it is told to the parent
        outcome = f"failed: {type(error).__name__}: {error}"
    else:
        outcome = "finished"
    link.send(outcome)


@dataclass
class Racer:
    """One process, from its start to its outcome."""

    number: int
    where: str
    fate: str = "ends"
    outcome: str = ""
    _link: Any = field(default=None, repr=False)
    _process: Any = field(default=None, repr=False)

    def start(self) -> None:
        """Return when its run begins."""
        context = multiprocessing.get_context("forkserver")
        self._link, theirs = context.Pipe()
        self._process = context.Process(target=child, args=(self.number, self.where, theirs))
        self._process.start()
        theirs.close()
        if self._link.recv() != "begun":
            raise SystemExit("the run did not begin")

    def act(self) -> None:
        """Kill or cancel it."""
        if self.fate == "is killed":
            self._process.kill()
        elif self.fate == "is cancelled":
            with suppress(BrokenPipeError):  # it has ended
                self._link.send("cancel")

    def end(self) -> float:
        """Take its outcome; return the seconds waited."""
        began = time.perf_counter()
        try:
            self.outcome = self._link.recv() if self._link.poll(LONGEST) else "did not end"
        except EOFError:
            self.outcome = "killed"
        self._process.kill()
        self._process.join()
        self._link.close()
        return time.perf_counter() - began


class LocalStore:
    """A Zarr store in a folder."""

    name = "local"

    def __init__(self, folder: Path) -> None:
        self._root = folder / "x.zarr"
        self.where = f"{self._root}::D"

    def clear(self) -> None:
        """Remove the store."""
        shutil.rmtree(self._root, ignore_errors=True)

    def left_over(self) -> list[str]:
        """Return the names beside the array, drafts of killed runs and their marks excepted."""
        names = {path.name for path in self._root.iterdir()} - {"zarr.json", "D"}
        drafts = {name.removesuffix(".part") for name in names if name.endswith(".part")}
        return sorted(name for name in names if not name.startswith(tuple(drafts)))


class Bucket:
    """A Zarr store in moto's object store."""

    name = "object"
    where = f"s3://{BUCKET}/x.zarr::D"

    def __init__(self) -> None:
        import obstore

        self._objects = obstore.store.S3Store(BUCKET, client_options={"allow_http": True})
        self._list = obstore.list

    def _keys(self) -> list[str]:
        return [entry["path"] for page in self._list(self._objects) for entry in page]

    def clear(self) -> None:
        """Remove all objects."""
        if keys := self._keys():
            self._objects.delete(keys)

    def left_over(self) -> list[str]:
        """Return the objects that are not of the array."""
        own = ("x.zarr/D/zarr.json", "x.zarr/D/c/")
        return [key for key in self._keys() if not key.startswith(own)]


@contextmanager
def object_store() -> Iterator[Bucket]:
    """Run moto for a while, with the variables that lead to it."""
    import boto3
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, threaded=False)
    server.log = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    os.environ |= {
        "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "local", "AWS_REGION": "us-east-1",
        "AWS_SECRET_ACCESS_KEY": "local", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
    }  # fmt: skip
    try:
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
        yield Bucket()
    finally:
        server.shutdown()
        thread.join()


def content(where: str) -> NDArray[Any] | None:
    """Return the array; None where there is none."""
    try:
        with open_stored(where) as matrix:
            return np.asarray(matrix)
    except HdgemmError:
        return None


def maker(found: NDArray[Any]) -> int | None:
    """Return the process whose product this is; None for a mixture."""
    for number in (1, 2):
        a, b = operands(number)
        if np.allclose(found, a @ b, rtol=0, atol=1e-10):
            return number
    return None


def check(store: Any, racers: Sequence[Racer], tally: Tally) -> None:
    """Judge the array that two processes have left."""
    said = f"{store.name}: {', '.join(f'{each.fate} ({each.outcome})' for each in racers)}"
    for each in racers:
        tally.counts[each.outcome.partition(":")[0]] += 1
        tally.check(not each.outcome.startswith(("failed", "did not")), said)
    finished = [each.number for each in racers if each.outcome == "finished"]
    if store.name == "object":
        tally.check(len(finished) < 2, f"{said}: both have created the array")
    found = content(store.where)
    if found is None:
        tally.counts["lost data"] += bool(finished)
        tally.check(not finished, f"{said}: the array is lost")
        return
    by = maker(found)
    # A process may be killed when it has published and before it says so; in a local store, where
    # a new array replaces the old one, also after the other has finished.
    killed = [each.number for each in racers if each.outcome == "killed"]
    may_have = finished or killed if store.name == "object" else finished + killed
    tally.counts["wrong data"] += by not in may_have
    tally.check(by in may_have, f"{said}: the array is the product of {by or 'nobody'}")


def check_again(store: Any, tally: Tally) -> None:
    """Give one command again, which nobody disturbs."""
    there = content(store.where) is not None
    last = Racer(1, store.where)
    last.start()
    last.end()
    said = f"{store.name}: again ({last.outcome})"
    if store.name == "object" and there:
        tally.check(last.outcome.startswith("refused"), f"{said}: an array was replaced")
    else:
        tally.check(last.outcome == "finished", f"{said}: the next run cannot store its product")
        found = content(store.where)
        tally.check(found is not None and maker(found) == 1, f"{said}: it is not there")
        tally.check(not store.left_over(), f"{said}: left over: {store.left_over()}")


def race(store: Any, rng: random.Random, tally: Tally, length: float) -> float:
    """Let two processes race; return the seconds that the longer one took."""
    store.clear()
    racers = [Racer(number, store.where, rng.choice(FATES)) for number in (1, 2)]
    rng.shuffle(racers)
    began = time.perf_counter()
    racers[0].start()
    time.sleep(rng.choice((0.0, rng.uniform(0.0, length))))
    racers[1].start()
    for moment, each in sorted(
        ((rng.uniform(0.0, length), each) for each in racers), key=lambda pair: pair[0]
    ):
        time.sleep(max(0.0, began + moment - time.perf_counter()))
        each.act()
    for each in racers:
        each.end()
    took = time.perf_counter() - began
    tally.counts["rounds"] += 1
    tally.counts["kills"] += sum(each.outcome == "killed" for each in racers)
    check(store, racers, tally)
    check_again(store, tally)
    return took


def main(arguments: Sequence[str] | None = None) -> int:
    """Race in both stores equally often."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    add_save(parser)
    asked = parser.parse_args(arguments)
    try:
        import moto.server
        import obstore
        import zarr
    except ImportError as error:
        print(f"the campaign needs moto, obstore and zarr: {error}", file=sys.stderr)
        return 2
    del moto, obstore, zarr
    tally, rng = Tally(), random.Random(asked.seed)
    tally.counts |= {"lost data": 0, "wrong data": 0, "refused": 0}
    with tempfile.TemporaryDirectory(prefix="hdgemm-race-") as name, object_store() as bucket:
        multiprocessing.set_forkserver_preload(
            ["hdgemm.blas", "hdgemm.run.engine", "zarr", "obstore"]
        )
        for store in (bucket, LocalStore(Path(name))):
            length = 1.0
            for _ in range(-(-asked.rounds // 2)):
                length = 0.8 * length + 0.2 * race(store, rng, tally, length)
            store.clear()
    return tally.end("store_race", asked)


if __name__ == "__main__":
    sys.exit(main())
