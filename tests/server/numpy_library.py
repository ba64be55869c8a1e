"""A `Library` for the service's tests: NumPy in steps, each with a chosen delay."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import CancelledRunError, DoesNotFitError, InputError
from hdgemm.pipeline.timeline import Event
from hdgemm.server.backend import Demand, Outcome

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from hdgemm.options import Options
    from hdgemm.server.backend import Call, JobWatch, Problem

#: Seconds that each of the `STEPS` steps takes at least, times the job's `threads`; names that
#: choose an odd behaviour.
DELAY = "HDGEMM_TEST_DELAY"
MODE = "HDGEMM_TEST_MODE"
#: Names a file: while it exists, jobs stop after their third step.
HOLD = "HDGEMM_TEST_HOLD"
#: Names a file: while it exists, pictures are not drawn.
HOLD_DRAWING = "HDGEMM_TEST_HOLD_DRAWING"
#: Bytes that are added to each trace.
TRACE_BYTES = "HDGEMM_TEST_TRACE_BYTES"
STEPS = 10
#: The check of a product with this alpha fails.
WRONG_ALPHA = -99.0


class NumpyLibrary:
    """The whole `Library`, in plain NumPy."""

    def preload(self) -> None:
        """Nothing is left to import."""

    def plan(self, problem: Problem, options: Options, cancel: threading.Event) -> Demand:
        """Ask for the bytes of all three matrices."""
        m, n = problem.m, problem.n
        k = problem.k or n
        needed = (m * k + k * n + m * n) * np.dtype(problem.dtype).itemsize
        limit = options.host_bytes
        if limit is not None and needed > limit:
            raise DoesNotFitError(
                f"the product needs {needed} bytes of host memory, {limit} are allowed",
                requested=needed, available=limit, missing=needed - limit,
            )  # fmt: skip
        plan = {"m": m, "n": n, "k": k, "tile": [max(1, -(-m // STEPS)), n, k], "units": STEPS}
        height = max(1, -(-m // STEPS))
        bars = [[row, 0, min(height, m - row), n] for row in range(0, m, height)]
        return Demand(needed, plan, bars)

    def run(self, call: Call, options: Options, watch: JobWatch) -> Outcome:
        """Multiply bar by bar; of the other processes, take as many steps."""
        if call.process == "gemm":
            return self._multiply(call, options, watch)
        if call.process == "verify":
            return _verify(call)
        began = time.monotonic()
        for step in range(STEPS):
            self._step(step + 1, watch, began)
        if call.process == "profile":
            report = {"device": call.parameters["device"]}
            return Outcome(report, _draw_profile)
        if call.process == "linpack":
            return Outcome({"n": call.parameters["n"], "nb": call.parameters["nb"], "passed": True})
        if not call.out.is_dir():  # A, as if it were the result; a determinant stores none
            with call.out.open("wb") as stream:
                np.save(stream, np.load(list(call.operands.values())[-1]))
        return Outcome({"seconds": 0.0, "gflops": 1.0, "stages": {}}, _draw)

    def linpack_bytes(self, parameters: Mapping[str, Any]) -> int:
        """Return the bytes of the matrix."""
        return 8 * parameters["n"] * (parameters["n"] + 1)

    def _multiply(self, call: Call, options: Options, watch: JobWatch) -> Outcome:
        a, b, c = (_operand(call.operands.get(name)) for name in ("a", "b", "c"))
        wanted = call.parameters
        a, b = (x.T if wanted[trans] else x for x, trans in ((a, "trans_a"), (b, "trans_b")))
        if options.strategy == "initial":
            raise RuntimeError("a fault of the library's own")
        if a.shape[1] != b.shape[0]:
            raise InputError(f"op(A) is {a.shape}, op(B) is {b.shape}")
        began = time.monotonic()
        out = np.zeros((a.shape[0], b.shape[1]), np.result_type(a, b))
        for step, bar in enumerate(np.array_split(np.arange(a.shape[0]), STEPS)):
            out[bar] = wanted["alpha"] * (a[bar] @ b)
            if wanted["beta"]:
                out[bar] += wanted["beta"] * c[bar]
            several = options.strategy == "hybrid"
            self._step(step + 1, watch, began, options.threads or 1, several=several)
        with call.out.open("wb") as stream:
            np.save(stream, out)
        if options.checks_product:
            watch.progress({"percent": 100.0, "phase": "verifying"})
        checked = _verification(passed=wanted["alpha"] != WRONG_ALPHA)
        report = {"seconds": time.monotonic() - began, "gflops": 1.0, "stages": {},
                  "verification": checked if options.checks_product else None}  # fmt: skip
        return Outcome(report, _draw)

    def _step(
        self, step: int, watch: JobWatch, began: float, slower: int = 1, *, several: bool = False
    ) -> None:
        for _ in _wait(slower * float(os.environ.get(DELAY, "0"))):
            if watch.cancel.is_set():
                raise CancelledRunError("cancelled")
        if os.environ.get(MODE) == "die" and step == STEPS // 2:
            os.abort()
        elapsed = time.monotonic() - began
        if watch.observer is not None:
            start = elapsed * (step - 1) / step
            watch.observer(Event("host", "mult1", step, step, step, start, elapsed, 0, 0))
        rows = ["aabb" if row < step else "...." for row in range(STEPS)]
        watch.progress(
            {"percent": 100.0 * step / STEPS, "steps": step, "total_steps": STEPS, "gflops": 1.0,
             "elapsed": elapsed, "eta": elapsed * (STEPS - step) / step, "limit": "mult1",
             "busy": {"host load1": 0.25 * elapsed, "host mult1": 0.75 * elapsed},
             "tiles": {"devices": ["one", "other"], "rows": rows} if several else None}
        )  # fmt: skip
        hold = os.environ.get(HOLD)
        while step == 3 and hold and Path(hold).exists():
            if watch.cancel.is_set():
                raise CancelledRunError("cancelled")
            time.sleep(0.01)


def _verify(call: Call) -> Outcome:
    """Compare with NumPy's product; ignores cancellation, as the library's own check does."""
    time.sleep(STEPS * float(os.environ.get(DELAY, "0")))
    a, b, c = (np.load(call.operands[name]) for name in "abc")
    passed = bool(np.allclose(call.parameters["alpha"] * (a @ b), c))
    return Outcome(_verification(passed=passed))


def _verification(*, passed: bool) -> dict[str, Any]:
    return {"passed": passed, "summary": f"C is {'' if passed else 'not '}the product"}


def _operand(path: Path | None) -> NDArray[np.float64]:
    return np.zeros((0, 0)) if path is None else np.load(path)


def _wait(seconds: float) -> Iterator[None]:
    until = time.monotonic() + seconds
    yield
    while time.monotonic() < until:
        time.sleep(0.01)
        yield


def _draw_profile(folder: Path) -> None:
    _draw(folder)
    (folder / "report.html").write_text("<!doctype html><title>A profile</title>", encoding="utf-8")


def _draw(folder: Path) -> None:
    hold = os.environ.get(HOLD_DRAWING)
    while hold and Path(hold).exists():
        time.sleep(0.01)
    trace = {"traceEvents": [], "otherData": "x" * int(os.environ.get(TRACE_BYTES, "0"))}
    (folder / "trace.json").write_text(json.dumps(trace), encoding="utf-8")
    (folder / "gantt.png").write_bytes(b"\x89PNG\r\n\x1a\n")
