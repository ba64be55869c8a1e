"""Steps of the demo: write A and B, multiply them file to file, verify C, compare with BLAS."""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import typer

from hdgemm.blas.products import multiply
from hdgemm.cli.output import Outputs, make_folder
from hdgemm.errors import HdgemmError, InputError
from hdgemm.pictures.figure import check_pictures
from hdgemm.report import versions
from hdgemm.units import format_duration, format_size, format_speed

if TYPE_CHECKING:
    from pathlib import Path

    from hdgemm.options import Options
    from hdgemm.report import Report

_ITEMSIZE: Final = 8
#: A and B together are at least this many times the memory of the run.
_LEAST_RATIO: Final = 4
_ALIGNMENT: Final = 64
#: Largest order of the in-RAM product; its speed hardly grows beyond.
_LARGEST_IN_RAM: Final = 4096


def square_order(size: int, memory: int) -> int:
    """Return the order n of two square float64 matrices that together take up to `size` bytes.

    Raise `InputError` where they take less than four times `memory`, in bytes.
    """
    n = math.isqrt(size // (2 * _ITEMSIZE))
    n -= n % _ALIGNMENT
    total = 2 * _ITEMSIZE * n * n
    if total < _LEAST_RATIO * memory or n == 0:
        raise InputError(
            f"A and B would take {format_size(total)}, less than {_LEAST_RATIO} times the"
            f" {format_size(memory)} that the run may use; give a larger --size or a smaller"
            " --host-memory",
            size=total,
            memory=memory,
        )
    return n


def blas_speeds(n: int, repeats: int = 3) -> list[float]:
    """Return the 10⁹ flop/s of repeated n×n float64 products by `numpy.matmul`, after a first."""
    a, b = np.random.default_rng(0).random((2, n, n))
    c = np.matmul(a, b)
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        np.matmul(a, b, out=c)
        found.append(2 * n**3 / (time.perf_counter() - began) / 1e9)
    return found


@dataclass
class Demonstration:
    """One demo: C := A·B for random n×n float64 files in a folder, within `memory` bytes."""

    n: int
    memory: int
    folder: Path
    options: Options
    seed: int
    quiet: bool = False

    def __post_init__(self) -> None:
        self._a, self._b, self._c = (self.folder / f"{name}.npy" for name in "ABC")

    def play(self, *, keep: bool) -> dict[str, Any]:
        """Perform all steps and return what report.json holds.

        The matrices are removed at the end, or on an error, unless `keep`.
        """
        make_folder(self.folder, "--out")
        self._refuse_existing()
        self._check_space()
        outputs = self._outputs()
        outputs.check()
        side = min(_LARGEST_IN_RAM, math.isqrt(self.memory // (3 * _ITEMSIZE)))
        side = max(_ALIGNMENT, side - side % _ALIGNMENT)
        try:
            self._write()
            # Before and after, so that a machine that becomes slower or faster favours neither.
            before = blas_speeds(side)
            report = outputs.show(
                self._c.name,
                lambda progress: multiply(
                    self._a, self._b, out=self._c, options=self.options, progress=progress
                ),
            )
            saved = self._compare(report, side, [*before, *blas_speeds(side)])
            self._verify()
        finally:
            if not keep:
                for path in (self._a, self._b, self._c):
                    path.unlink(missing_ok=True)
        left = (outputs.gantt, outputs.trace, outputs.report)
        self._say(f"written: {', '.join(str(path) for path in left if path is not None)}")
        return saved

    def _refuse_existing(self) -> None:
        """Refuse a folder with matrices of the demo's names, which it would replace and remove."""
        for path in (self._a, self._b, self._c):
            if path.exists():
                raise InputError(
                    f"{path} exists, and the demo would replace and remove it: remove it, or give "
                    "another folder with --out"
                )

    def _outputs(self) -> Outputs:
        """Return the files that the demo leaves: no picture without Matplotlib."""
        gantt: Path | None = self.folder / "gantt.png"
        try:
            check_pictures("gantt.png")
        except InputError as error:
            self._say(f"no picture: {error}")
            gantt = None
        return Outputs(
            trace=self.folder / "trace.json",
            gantt=gantt,
            report=self.folder / "report.json",
            quiet=self.quiet,
        )

    def _check_space(self) -> None:
        need = 3 * _ITEMSIZE * self.n**2
        free = shutil.disk_usage(self.folder).free
        if free < need:
            raise InputError(
                f"{self.folder} has {format_size(free)} free, the three matrices take"
                f" {format_size(need)}; give a smaller --size or another --out",
                free=free,
                need=need,
            )

    def _write(self) -> None:
        from hdgemm.matrices.random import random_matrix

        n, began = self.n, time.perf_counter()
        total, limit = format_size(2 * _ITEMSIZE * n * n), format_size(self.memory)
        self._say(f"C := A·B, n = {n}, float64: {total} in two files, {limit} of memory to use")
        random_matrix(self._a, n, n, self.seed, "float64")
        random_matrix(self._b, n, n, self.seed + 1, "float64")
        self._say(f"A and B written in {format_duration(time.perf_counter() - began)}")

    def _compare(self, report: Report, side: int, speeds: list[float]) -> dict[str, Any]:
        best = max(speeds)
        share = report.gflops / best
        self._say(
            f"speed: {share:.3f} of in-RAM BLAS (numpy.matmul, n = {side}, best of"
            f" {len(speeds)}: {format_speed(best)}, measured before and after)"
        )
        saved = {
            **report.to_dict(),
            "in_ram_blas": {"n": side, "gflops": best, "runs": speeds, "share": share},
            "versions": versions(),
        }
        text = json.dumps(saved, indent=2, allow_nan=False)
        (self.folder / "report.json").write_text(text + "\n", encoding="utf-8")
        return saved

    def _verify(self) -> None:
        import hdgemm

        began = time.perf_counter()
        result = hdgemm.verify(self._a, self._b, self._c, memory=self.memory)
        self._say(f"verified in {format_duration(time.perf_counter() - began)}: {result}")
        if not result.passed:
            raise HdgemmError("C is not the product of A and B")

    def _say(self, text: str) -> None:
        if not self.quiet:
            typer.echo(text)
