"""The process that tries candidates, seen from outside: asked, watched, replaced when it dies."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

from hdgemm.pipeline.devices.opencl.shape_classes import SQUARE, extents
from hdgemm.pipeline.devices.opencl.result import Outcome, Result
from hdgemm.pipeline.devices.opencl.tuning_process import is_wrong

if TYPE_CHECKING:
    import numpy as np

    from hdgemm.pipeline.devices.opencl.shape import Shape


class Bench:
    """A context manager around the trial process."""

    def __init__(self, device: str, dtype: np.dtype[Any], seconds_each: float) -> None:
        self._command = [sys.executable, "-m", f"{__package__}.trial", device, dtype.name]
        self._dtype = dtype
        self._seconds = seconds_each
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def try_shape(self, shape: Shape, n: int, repeats: int, of: str = SQUARE) -> Result:
        """Try one candidate; one that takes the process with it has only itself to blame."""
        process = self._running()
        assert process.stdin is not None  # noqa: S101 - Popen was given pipes
        assert process.stdout is not None  # noqa: S101
        product = extents(of, n)
        request = {"shape": shape.to_json(), "extents": product, "repeats": repeats}
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], self._seconds)
            line = process.stdout.readline() if ready else ""
        except BrokenPipeError:
            ready, line = [process.stdout], ""
        if not ready:
            self._stop()
            return Result(shape, n, "slow", note=f"no answer in {self._seconds:.0f} s", of=of)
        if not line:
            self._stop()
            return Result(shape, n, "crashed", note="the compiler ended its process", of=of)
        return self._judge(Result(shape, n, "failed", of=of), json.loads(line))

    def _judge(self, result: Result, answer: dict[str, Any]) -> Result:
        if "failed" in answer:
            return result._replace(note=answer["failed"])
        error, gflops = answer["error"], answer["gflops"]
        outcome: Outcome = "wrong" if is_wrong(error, self._dtype) else "timed"
        return result._replace(outcome=outcome, gflops=gflops, error=error)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True, bufsize=1, start_new_session=True,
            )  # fmt: skip
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
