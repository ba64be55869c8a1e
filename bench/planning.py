"""Time and memory of plans, of products and of every routine, up to 10⁹ per dimension.

python -m bench.planning [--routine lu ...] [--largest 1000000000] [--memory 100MB ...]

Nothing is calibrated, read or written: all plans are made with a session's rates. A case is the
processor time of the best of several plans, each without those that are cached, and the largest
allocation of one more. Where the memory is refused, the memory that the refusal names is planned
with, too.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import time
import tracemalloc
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import hdgemm
from bench.harness import environment, save
from hdgemm import linalg
from hdgemm.planning.planner import plan_case
from hdgemm.routines.registry import planned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hdgemm.routines.description import Routine

#: What a plan may take.
MOST_SECONDS: Final = 0.1
MOST_BYTES: Final = 10_000_000
#: Columns of tall matrices, rows of wide ones, and k of products of small depth.
FEW: Final = 100
_REPEAT: Final = 3
_TIME_LIMIT: Final = 60


def shapes(routine: Routine, n: int) -> list[tuple[int, int]]:
    """Return the shapes of A with an extent of n."""
    return [(n, n)] if routine.operands[0].square else [(n, n), (n, FEW), (FEW, n)]


def plans(names: list[str], n: int) -> Iterator[tuple[str, str, Callable[..., object]]]:
    """Yield a name, a shape and the function that plans, for each routine and shape."""
    for name, routine in planned().items():
        if name == routine.name and (not names or name in names):
            for shape in shapes(routine, n):
                given = {"trans": True} if name == "syrk" and shape[0] == FEW else {}
                yield name, "×".join(map(str, shape)), partial(linalg.plan, name, shape, **given)
    if not names or "multiply" in names:
        for extents in ((n, n, n), (n, n, FEW), (n, 1, n), (FEW, FEW, n)):
            yield "multiply", "×".join(map(str, extents)), partial(_plan_gemm, extents)


def _plan_gemm(
    extents: tuple[int, int, int], *, options: hdgemm.Options, session: hdgemm.Session
) -> object:
    del session  # `plan_gemm` has one of its own
    return hdgemm.plan_gemm(*extents, options=options)


def measured(plan: Callable[..., object], memory: int) -> dict[str, Any]:
    """Return what one plan takes, or the memory that its refusal names."""
    options = hdgemm.Options(host_memory=memory, devices="host")
    found: dict[str, Any] = {"host_memory": memory}
    gc.collect()
    with hdgemm.Session(options) as session:
        times = []
        for repetition in range(_REPEAT + 1):
            plan_case.cache_clear()
            if repetition == _REPEAT:
                tracemalloc.start()
            start = time.process_time()
            signal.alarm(_TIME_LIMIT)
            try:
                plan(options=options, session=session)
            except hdgemm.DoesNotFitError as error:
                found["refused"] = error.requested
            except TimeoutError:
                tracemalloc.stop()
                return found | {"seconds": _TIME_LIMIT, "peak_bytes": 0, "finished": False}
            finally:
                signal.alarm(0)
            times.append(time.process_time() - start)
        found["peak_bytes"] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return found | {"seconds": min(times[:_REPEAT])}


def cases(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the results of all cases."""
    n = 10_000
    while n <= asked.largest:
        for name, shape, plan in plans(asked.routine, n):
            named = set()
            for memory in map(hdgemm.options.parse_size, asked.memory):
                what = {"routine": name, "shape": shape}
                try:
                    found = measured(plan, memory)
                    yield what | found
                    if found.get("refused", 0) and found["refused"] not in named:
                        named.add(found["refused"])
                        yield what | measured(plan, found["refused"]) | {"named": True}
                except hdgemm.InputError as error:
                    yield what | {"host_memory": memory, "impossible": str(error)}
        n *= 100 if n < 10**6 else 1000


def exceeds(case: dict[str, Any]) -> bool:
    """Say whether a plan took more than it may."""
    return case.get("seconds", 0) > MOST_SECONDS or case.get("peak_bytes", 0) > MOST_BYTES


def _interrupt(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--routine", nargs="+", default=[])
    parser.add_argument("--largest", type=int, default=10**9)
    parser.add_argument("--memory", nargs="+", default=["100MB", "8GB", "1TB"])
    asked = parser.parse_args()
    where = environment()
    signal.signal(signal.SIGALRM, _interrupt)
    warnings.simplefilter("ignore", RuntimeWarning)
    for _, _, plan in plans(asked.routine, 1000):  # imports
        measured(plan, 10**9)
    found = []
    for case in cases(asked):
        found.append(case | {"exceeds": exceeds(case)})
        print(json.dumps(found[-1], ensure_ascii=False), flush=True)
    save(
        "planning", {"most_seconds": MOST_SECONDS, "most_bytes": MOST_BYTES, "cases": found}, where
    )


if __name__ == "__main__":
    main()
