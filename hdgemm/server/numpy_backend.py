"""A `Library` for the service's own tests: NumPy in steps, each with a chosen delay."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hdgemm.errors import CancelledRunError, DoesNotFitError, InputError
from hdgemm.pipeline.timeline import Event
from hdgemm.server.backend import Demand, Outcome, RoutineProblem

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.options import Options
    from hdgemm.server.backend import (
        GemmCall,
        LinpackCall,
        Problem,
        ProfileCall,
        RoutineCall,
        Watch,
    )

#: Seconds that each of the `STEPS` steps takes at least, times the job's `threads`; names that
#: choose an odd behaviour.
DELAY = "HDGEMM_TEST_DELAY"
MODE = "HDGEMM_TEST_MODE"
#: Names a file: while it exists, jobs stop after their third step.
HOLD = "HDGEMM_TEST_HOLD"
STEPS = 10
_VERIFIED = {"passed": True, "summary": "C is the product"}


class NumpyLibrary:
    """The whole `Library`, in plain NumPy."""

    def plan(
        self,
        problem: Problem | RoutineProblem,
        options: Options,
        cancel: threading.Event,  # noqa: ARG002
    ) -> Demand:
        """Ask for the bytes of all three matrices."""
        m, n = problem.m, problem.n
        k = n if isinstance(problem, RoutineProblem) else problem.k
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

    def multiply(self, call: GemmCall, options: Options, watch: Watch) -> Outcome:
        """Multiply bar by bar."""
        a, b, c = (_operand(path) for path in (call.a, call.b, call.c))
        a, b = (x.T if trans else x for x, trans in ((a, call.trans_a), (b, call.trans_b)))
        if a.shape[1] != b.shape[0]:
            raise InputError(f"op(A) is {a.shape}, op(B) is {b.shape}")
        began = time.monotonic()
        out = np.zeros((a.shape[0], b.shape[1]), np.result_type(a, b))
        for step, bar in enumerate(np.array_split(np.arange(a.shape[0]), STEPS)):
            out[bar] = call.alpha * (a[bar] @ b)
            if call.beta:
                out[bar] += call.beta * c[bar]
            several = options.strategy == "hybrid"
            self._step(step + 1, watch, began, options.threads or 1, several=several)
        with call.out.open("wb") as stream:
            np.save(stream, out)
        if options.checks_product:
            watch.progress({"percent": 100.0, "phase": "verifying"})
        report = {"seconds": time.monotonic() - began, "gflops": 1.0, "stages": {},
                  "verification": _VERIFIED if options.checks_product else None}  # fmt: skip
        return Outcome(report, _draw)

    def compute(self, call: RoutineCall, options: Options, watch: Watch) -> Outcome:  # noqa: ARG002
        """Store A, as if it were the result."""
        began = time.monotonic()
        for step in range(STEPS):
            self._step(step + 1, watch, began)
        with call.out.open("wb") as stream:
            np.save(stream, np.load(call.operands[-1]))
        return Outcome({"seconds": 0.0, "gflops": 1.0, "stages": {}}, _draw)

    def verify(self, call: GemmCall, options: Options, watch: Watch) -> Outcome:  # noqa: ARG002
        """Compare with NumPy's product; ignores cancellation, as the library's own check does."""
        time.sleep(STEPS * float(os.environ.get(DELAY, "0")))
        product = call.alpha * (np.load(call.a) @ np.load(call.b))
        passed = bool(np.allclose(product, np.load(call.out)))
        return Outcome({"passed": passed, "summary": f"C is {'' if passed else 'not '}the product"})

    def profile(self, call: ProfileCall, options: Options, watch: Watch) -> Outcome:  # noqa: ARG002
        """Measure nothing, in steps."""
        began = time.monotonic()
        for step in range(STEPS):
            self._step(step + 1, watch, began)
        return Outcome({"device": call.device, "kind": "measured"}, _draw_profile)

    def linpack_bytes(self, call: LinpackCall) -> int:
        """Return the bytes of the matrix."""
        return 8 * call.n * (call.n + 1)

    def linpack(self, call: LinpackCall, options: Options, watch: Watch) -> Outcome:  # noqa: ARG002
        """Solve nothing, in steps."""
        began = time.monotonic()
        for step in range(STEPS):
            self._step(step + 1, watch, began)
        return Outcome({"n": call.n, "nb": call.nb, "passed": True})

    def _step(
        self, step: int, watch: Watch, began: float, slower: int = 1, *, several: bool = False
    ) -> None:
        for _ in _wait(slower * float(os.environ.get(DELAY, "0"))):
            if watch.cancel.is_set():
                raise CancelledRunError("cancelled")
        mode = os.environ.get(MODE)
        if mode == "die" and step == STEPS // 2:
            os.abort()
        if mode == "bug":
            raise RuntimeError("a fault of the library's own")
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
    (folder / "trace.json").write_text(json.dumps({"traceEvents": []}), encoding="utf-8")
    (folder / "gantt.png").write_bytes(b"\x89PNG\r\n\x1a\n")
