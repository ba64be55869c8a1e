"""Products and passes over rows on a Dask cluster, and a thousand workers in virtual time.

python -m bench.cluster efficiency [--n 8192] [--memory 400MB] [--repeats 3]
python -m bench.cluster rows [--rows 400000] [--n 400] [--repeats 3]
python -m bench.cluster load [--blocks 100000]
python -m bench.cluster virtual [--n 1000000]

`efficiency` compares workers of one thread with one engine that has as many threads and as much
memory as all of them, by turns. `rows` does so for passes over the rows of a tall file: R by QR,
and a covariance matrix. `load` sends blocks that compute nothing, and empty tasks of Dask's
own for comparison. Kills are a campaign:
`python -m bench.campaigns.cluster_kills`.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bench.harness import ROOT, data_folder, drop_cached, environment, save, spread
from bench.lossy_cluster import LossyCluster
from hdgemm import linalg
from hdgemm.blas.products import multiply
from hdgemm.cluster import blocks, multiply as multiply_on_cluster, row_passes
from hdgemm.cluster.connection import local_cluster
from hdgemm.cluster.virtual_time import VirtualWorker
from hdgemm.matrices.random import random_matrix
from hdgemm.options import Options, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Bare submits that are measured beside the blocks.
_BARE_SUBMITS = 5000
#: Columns of C, so that each of its rows takes whole pages.
_COLUMNS = 512


def efficiency(args: argparse.Namespace) -> dict[str, Any]:
    """Compare one and two workers with one engine on as many cores."""
    found: dict[str, Any] = {"n": args.n, "memory": args.memory}
    with data_folder(args.data) as folder:
        for seed, name in enumerate("AB"):
            random_matrix(folder / f"{name}.npy", args.n, args.n, seed, "float64")
        for count in (1, 2):
            found[f"{count} workers"] = _turns(args, folder, count)
    return found


def _options(args: argparse.Namespace, count: int) -> tuple[Options, Options]:
    """Return the options of one engine on so many cores, and of each worker of one core."""
    memory = parse_size(args.memory)
    alone = Options(devices="host", threads=count, host_memory=memory)
    return alone, Options(devices="host", threads=1, host_memory=memory // count)


def rows(args: argparse.Namespace) -> dict[str, Any]:
    """Compare passes over rows on two workers of one core with one engine on two cores."""
    alone, each = _options(args, 2)
    found: dict[str, Any] = {"rows": args.rows, "n": args.n, "memory": args.memory}
    with data_folder(args.data) as folder, local_cluster(2, threads=1) as client:
        tall = folder / "T.npy"
        random_matrix(tall, args.rows, args.n, 0, "float64")
        calls: dict[str, Callable[[Options], Any]] = {
            "qr": lambda options: linalg.qr(tall, mode="r", options=options),
            "cov": lambda options: linalg.cov(tall, rowvar=False, options=options),
        }
        for name, call in calls.items():
            pairs = []
            for turn in range(1 + args.repeats):
                drop_cached([tall])
                engine = _seconds(call, alone)
                drop_cached([tall])
                with row_passes(client, options=each):
                    cluster = _seconds(call, each)
                print(f"{name}: one engine {engine:.2f} s, two workers {cluster:.2f} s", flush=True)
                if turn:  # the first turn measures the rates and imports the libraries
                    pairs.append((engine, cluster))
            ratio = spread([engine / cluster for engine, cluster in pairs])
            found[name] = {"seconds": pairs, "efficiency": ratio}
            print(f"{name}: two workers reach {ratio['median']:.3f} of one engine (median)")
    return found


def _seconds(call: Callable[[Options], Any], options: Options) -> float:
    began = time.perf_counter()
    call(options)
    return time.perf_counter() - began


def _turns(args: argparse.Namespace, folder: Path, count: int) -> dict[str, Any]:
    alone, each = _options(args, count)
    a, b = folder / "A.npy", folder / "B.npy"
    seconds: dict[str, list[float]] = {"engine": [], "cluster": []}
    with local_cluster(count, threads=1) as client:
        runs: dict[str, Callable[[Path], Any]] = {
            "engine": lambda c: multiply(a, b, out=c, options=alone),
            "cluster": lambda c: multiply_on_cluster(a, b, out=c, options=each, client=client),
        }
        for turn in range(1 + args.repeats):
            for name, call in runs.items():
                for path in [*folder.glob("C.npy"), *folder.glob(".C.npy*")]:
                    path.unlink()
                drop_cached([a, b])
                began = time.perf_counter()
                report = call(folder / "C.npy")
                took = time.perf_counter() - began
                if turn:  # the first turn measures the rates and imports the libraries
                    seconds[name].append(took)
                shares = report.plan.get("blocks", report.plan.get("units"))
                print(f"{count} × {name}: {took:.2f} s, {shares} blocks", flush=True)
    pairs = zip(seconds["engine"], seconds["cluster"], strict=True)
    ratio = spread([engine / cluster for engine, cluster in pairs])
    print(f"{count} workers reach {ratio['median']:.3f} of one engine on {count} cores (median)")
    return {"seconds": seconds, "efficiency": ratio}


def load(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the processor time of client and scheduler, one process here, for a block."""
    # Each row of C, a page of a file, is a block; a worker gets 64 at a time.
    blocks.BlockPool._extents = lambda *_: (1, _COLUMNS)  # type: ignore[method-assign] # noqa: SLF001
    finished, worked = [], []

    def progress(snapshot: Any) -> None:
        finished.append(snapshot.steps)
        worked.append(time.process_time())

    with data_folder(args.data) as folder:
        random_matrix(folder / "A.npy", args.blocks, 1, 0, "float64")
        random_matrix(folder / "B.npy", 1, _COLUMNS, 1, "float64")
        with local_cluster(2, threads=1) as client:
            client.run(_do_nothing)
            bare = _bare_submits(client, min(args.blocks, _BARE_SUBMITS))
            began, before = time.perf_counter(), time.process_time()
            multiply_on_cluster(
                folder / "A.npy", folder / "B.npy", out=folder / "C.npy", client=client,
                progress=progress,
            )  # fmt: skip
            took, each = time.perf_counter() - began, time.process_time() - before
    count = finished[-1]
    tenths = np.interp(np.linspace(0, count, 11), [0, *finished], [before, *worked])
    found = {
        "blocks": count, "seconds": took, "processor_milliseconds_each": 1e3 * each / count,
        "milliseconds_each_by_tenths": list(1e4 * np.diff(tenths) / count),
        "bare_submit_milliseconds": 1e3 * bare,
    }  # fmt: skip
    print(
        f"{count} blocks in {took:.1f} s; client and scheduler compute {1e3 * each / count:.3f} "
        f"ms each; a bare Dask submit takes them {1e3 * bare:.3f} ms; by tenths of the blocks: "
        + " ".join(f"{part:.3f}" for part in found["milliseconds_each_by_tenths"])
    )
    return found


def _bare_submits(client: Any, count: int) -> float:
    """Return the processor seconds of `Client.submit` of an empty task, two at a time a worker."""
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    workers = list(client.nthreads())
    held = set()

    def submit(number: int) -> None:
        future = client.submit(
            int, number, workers=[workers[number % len(workers)]], pure=False, priority=-number
        )
        held.add(future)
        future.add_done_callback(ended.put)

    window = 2 * len(workers)
    worked = time.process_time()
    for number in range(count + window):
        if number >= window:
            held.discard(ended.get())
        if number < count:
            submit(number)
    return (time.process_time() - worked) / count


def _do_nothing() -> None:
    """Let this worker send receipts of blocks that it has not computed."""
    from dataclasses import asdict

    from distributed import get_worker

    from hdgemm.cluster import task
    from hdgemm.cluster.receipts import Receipt

    def compute_block(topic: str, number: int, block: Any, _share: float) -> None:
        receipt = Receipt(
            number=number, block=block, pieces=[(block, 0)], began=time.time(), seconds=1e-3,
            stages={}, events=[], peak_memory=0,
        )  # fmt: skip
        get_worker().log_event(topic, asdict(receipt))

    task.compute_block = compute_block


def virtual(args: argparse.Namespace) -> dict[str, Any]:
    """Run 1,000 workers of 50 to 500 GFLOP/s, 5 % of them lost, on a storage of 200 GB/s."""
    found = []
    for seed in range(args.repeats):
        random = Random(seed)
        rates = [50e9 * 10 ** random.random() for _ in range(1000)]
        ideal = 2 * args.n**3 / sum(rates)
        workers = [
            VirtualWorker(f"w{i}", rate, most_elements=4e9, bandwidth=10e9)
            for i, rate in enumerate(rates)
        ]
        lost = {
            worker.name: random.uniform(0, ideal) for worker in workers if random.random() < 0.05
        }
        began = time.perf_counter()
        cluster = LossyCluster(
            (args.n, args.n), blocks.Costs(k=args.n), workers, lost, bandwidth=200e9,
            flops_per_element=2 * args.n,
        )  # fmt: skip
        run = cluster.run()
        cost = (time.perf_counter() - began) / len(run.blocks)
        found.append(run.efficiency)
        print(
            f"{run.seconds:.0f} s, efficiency {run.efficiency:.3f}, {len(run.blocks)} blocks, "
            f"{sum(run.bytes_read.values()) / 1e12:.0f} TB read, {1e3 * cost:.3f} ms a block"
        )
    return {"n": args.n, "efficiency": found, "median": statistics.median(found)}


#: What is measured, and the extent n where none is given.
_MEASUREMENTS: Final[Mapping[str, tuple[Callable[[argparse.Namespace], dict[str, Any]], int]]] = {
    "efficiency": (efficiency, 8192),
    "rows": (rows, 400),
    "load": (load, 8192),
    "virtual": (virtual, 1_000_000),
}


def main() -> None:
    """Measure and write bench/results/cluster_*.json where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=list(_MEASUREMENTS))
    parser.add_argument("--n", type=int)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--memory", default="400MB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--data", type=Path, default=ROOT / "tmp", help="where matrices go")
    parser.add_argument("--save", action="store_true", help="write bench/results/cluster_*.json")
    args = parser.parse_args()
    measure, n = _MEASUREMENTS[args.what]
    args.n = args.n or n
    where = environment()
    found = measure(args)
    if args.save:
        save(f"cluster_{args.what}", found, where)


if __name__ == "__main__":
    main()
