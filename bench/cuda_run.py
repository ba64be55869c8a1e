"""One run of the CUDA benchmark: its sizes, its results, the time that is left."""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bench.cuda_data import residual
from bench.harness import environment, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from bench.cuda_data import Data


@dataclass(frozen=True)
class Sizes:
    """Extents, bytes and repeats of the measurements.

    `squares` are the pipeline's n, `paper` its (m = n, k), `blocks` the edges of cuBLASXt's tiles,
    None for its default.
    """

    squares: tuple[int, ...] = (16384, 32768, 49152)
    kernels: int = 16384
    paper: tuple[tuple[int, int], ...] = tuple(
        (n, k) for n in (16384, 24576, 32768) for k in (1536, 2048, 4096)
    )
    ladder: tuple[int, int] = (16384, 4096)
    peers: tuple[int, ...] = (16384, 32768)
    blocks: tuple[int | None, ...] = (None, 2048, 4096, 8192)
    link_bytes: int = 1 << 30
    pin_bytes: int = 1 << 30
    copy_bytes: int = 1 << 30
    device_memory: int = 8 * 10**9
    repeats: int = 3


NO_MEASUREMENT: Final = "DRY RUN on a stand-in for the driver: no figure below is a measurement"

#: For dry runs.
TINY: Final = Sizes(
    squares=(256, 384),
    kernels=128,
    paper=((256, 96),),
    ladder=(256, 128),
    peers=(256,),
    blocks=(None, 64),
    link_bytes=1 << 16,
    pin_bytes=1 << 16,
    copy_bytes=1 << 20,
    device_memory=8 << 20,
    repeats=2,
)


class WrongProductError(Exception):
    """A product that fails its check."""


@dataclass
class Run:
    """One run of the benchmark; its results are written after every measurement.

    Parameters
    ----------
    deadline
        When no further measurement begins, on `time.perf_counter`'s clock.
    dry
        On a stand-in for the driver: no figure is a measurement.
    """

    device: str
    sizes: Sizes
    data: Data
    deadline: float
    dry: bool
    folder: Path
    results: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    ceilings: dict[int, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The title of its pictures."""
        if self.dry:
            return NO_MEASUREMENT
        return str(self.results.get("device", {}).get("description", self.device))

    def attempt(self, what: str, measure: Callable[[], object]) -> None:
        """Measure one thing; a failure is kept in `failed`, and the rest is still measured."""
        try:
            measure()
        except Exception as error:  # noqa: BLE001 - drivers and peers raise what they like
            self.failed.append(f"{what}: {type(error).__name__}: {error}")
            print(self.failed[-1], file=sys.stderr)
        finally:
            self.save()

    def each(
        self, what: str, cases: Iterable[Any], seconds: float, measure: Callable[[Any], object]
    ) -> None:
        """Measure cases while `seconds` for one more are left; name the others."""
        for case in cases:
            if time.perf_counter() + seconds > self.deadline:
                self.left_out.append(f"{what} {case}: no time left")
            else:
                self.attempt(f"{what} {case}", lambda case=case: measure(case))  # type: ignore[misc]

    def save(self) -> None:
        """Write what was measured so far to ``cuda.json``."""
        written = {
            "is_a_measurement": not self.dry,
            "environment": environment(),
            **self.results,
            "left_out": self.left_out,
            "failed": self.failed,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "cuda.json"
        path.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")

    def note(self, section: str, entry: dict[str, Any]) -> None:
        """Keep one result and show it."""
        self.results.setdefault(section, []).append(entry)
        line = f"{section:14} {entry['label']:42}"
        if "tflops" in entry and not self.dry:
            line += f" {entry['tflops']:8.2f} Tflop/s"
        if "share_of_ceiling" in entry and not self.dry:
            line += f"  {entry['share_of_ceiling']:6.1%} of cuBLAS on resident data"
        print(line, flush=True)

    def timed(self, section: str, label: str, extents: tuple[int, int, int],
              seconds: Sequence[float], **more: Any) -> None:  # fmt: skip
        """Keep a product's times, beside the ceiling of its extents where one was measured."""
        m, n, k = extents
        median = statistics.median(seconds)
        entry = {"label": label, "m": m, "n": n, "k": k, "seconds": spread(seconds)}
        entry["tflops"] = 2 * m * n * k / median / 1e12
        ceiling = self.ceilings.get(n) if m == n == k else max(self.ceilings.values(), default=None)
        if ceiling:
            entry |= {
                "ceiling_tflops": ceiling,
                "share_of_ceiling": entry["tflops"] / ceiling,
            }
        self.note(section, entry | more)

    def checked(self, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], what: str) -> float:
        """Return the residual of a product.

        Raises
        ------
        WrongProductError
            When it is wrong; its times are not kept.
        """
        found = residual(a, b, c)
        if not found < 1:
            raise WrongProductError(f"{what}: residual {found:.3g} rounding units")
        return found
