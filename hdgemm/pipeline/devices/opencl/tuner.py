"""Search for the fastest kernel shapes of a dtype on a device, within a time budget.

Three rounds share the budget, each with a larger product and fewer candidates: cores, in best-first
order; walks, the neighbours of the leading cores; and a final between the leaders and the shipped
default. The remaining time goes to the classes of products that are not square: walks of the
winner, which use the same slots, on the class's product. Every trial is written to a journal, so
that an interrupted search continues where it was.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.pipeline.devices.opencl._search_space import BestFirst, Pruned, cores, prune, walks
from hdgemm.pipeline.devices.opencl.kernel_shapes import CLASSES, SQUARE, same_layout
from hdgemm.pipeline.devices.opencl.names import locate
from hdgemm.pipeline.devices.opencl.tuning_cache import TuningCache, default_shape
from hdgemm.pipeline.devices.opencl.tuning_process import TuningProcess, random_matrix
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hdgemm.pipeline.devices.opencl._driver import Facts
    from hdgemm.pipeline.devices.opencl.kernel_shapes import KernelShape
    from hdgemm.pipeline.devices.opencl.tuning_cache import Trial

#: Share of the budget after which a round ends, and the extent of its products.
ROUNDS: Final[Mapping[str, tuple[float, int]]] = {
    "cores": (0.45, 384),
    "walks": (0.65, 1024),
    "final": (0.75, 2048),
    "classes": (1.0, 2048),
}
_LEADERS: Final = {"walks": 3, "final": 4}
_REPEATS: Final = {"cores": 2, "walks": 2, "final": 5, "classes": 3}
#: A class keeps a shape of its own that is at least this many times as fast as the square one's.
_WORTHWHILE: Final = 1.03
_SLOWEST_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """State of a search: its round, the share of the budget spent, trials, the best so far."""

    round: str
    spent: float
    tried: int
    best_gflops: float


@dataclass(frozen=True, slots=True)
class ClassResult:
    """The fastest shape for a class of products, and the square class's shape on its product."""

    best: Trial
    square: Trial

    @property
    def kept(self) -> bool:
        """Whether the class has a shape of its own."""
        return self.best.gflops > _WORTHWHILE * self.square.gflops


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result of a search.

    `trials` includes earlier searches in the journal; `winner` is None where no candidate
    was timed; `classes` were reached in time; `unkept` says why the winner could not be kept, and
    is empty if it was.
    """

    device: str
    facts: Facts
    dtype: str
    pruned: Pruned
    trials: tuple[Trial, ...]
    winner: Trial | None
    default: Trial | None
    classes: Mapping[str, ClassResult]
    seconds: float
    interrupted: bool
    unkept: str

    def funnel(self) -> dict[str, Any]:
        """Count the cores at each stage, from all candidates to those that were timed."""
        outcomes = dict.fromkeys(("failed", "crashed", "slow", "wrong", "timed"), 0)
        first = [trial for trial in self.trials if trial.n == ROUNDS["cores"][1]]
        for trial in first:
            outcomes[trial.outcome] += 1
        kept = len(self.pruned.kept)
        return {
            "candidates": self.pruned.candidates,
            "pruned": dict(self.pruned.removed),
            "kept": kept,
            "not_tried": kept - len(first),
            **outcomes,
        }

    def speeds(self) -> list[float]:
        """Return the GFLOP/s of every core that was timed, in ascending order."""
        n = ROUNDS["cores"][1]
        return sorted(x.gflops for x in self.trials if x.outcome == "timed" and x.n == n)


@dataclass(slots=True)
class _Search:
    process: TuningProcess
    record: Callable[[Trial], None]
    progress: Callable[[TuningProgress], None]
    budget: float
    known: dict[tuple[KernelShape, int, str], Trial]
    dtype: np.dtype[Any]
    began: float = field(default_factory=time.monotonic)

    def spent(self) -> float:
        return (time.monotonic() - self.began) / self.budget

    def attempt(self, shape: KernelShape, stage: str, of: str = SQUARE) -> Trial:
        n = ROUNDS[stage][1]
        trial = self.known.get((shape, n, of))
        if trial is None:
            trial = self.process.try_shape(shape, n, _REPEATS[stage], of)
            self.known[shape, n, of] = trial
            self.record(trial)
        best = max((x.gflops for x in self.timed()), default=0.0)
        self.progress(TuningProgress(stage, min(1.0, self.spent()), len(self.known), best))
        return trial

    def timed(self, of: str = SQUARE) -> list[Trial]:
        return [x for x in self.known.values() if x.outcome == "timed" and x.of == of]

    def leaders(self, n: int, count: int) -> list[KernelShape]:
        timed = [x for x in self.timed() if x.n == n]
        return [x.shape for x in sorted(timed, key=lambda x: -x.gflops)[:count]]

    def try_cores(self, kept: Iterable[KernelShape], default: KernelShape) -> None:
        self.attempt(default, "cores")
        order = BestFirst(kept)
        while self.spent() < ROUNDS["cores"][0] and (shape := order.take()) is not None:
            trial = self.attempt(shape, "cores")
            order.learn(shape, trial.gflops if trial.outcome == "timed" else 0.0)
            if trial.outcome in {"crashed", "slow"}:
                order.give_up(shape)

    def try_walks(self, default: KernelShape) -> None:
        n = ROUNDS["walks"][1]
        for shape in [default, *self.leaders(ROUNDS["cores"][1], _LEADERS["walks"])]:
            self.attempt(shape, "walks")
        improving = True
        while improving and self.leaders(n, 1):
            best = self.leaders(n, 1)[0]
            for shape in walks(best):
                if self.spent() >= ROUNDS["walks"][0]:
                    return
                self.attempt(shape, "walks")
            improving = self.leaders(n, 1)[0] != best

    def decide(self, default: KernelShape) -> tuple[Trial | None, Trial]:
        last = self.attempt(default, "final")
        for shape in self.leaders(ROUNDS["walks"][1], _LEADERS["final"]):
            if self.spent() < 1.0:
                self.attempt(shape, "final")
        return self.best(), last

    def best(self) -> Trial | None:
        """Return the fastest trial at the largest extent reached."""
        return max(self.timed(), key=lambda x: (x.n, x.gflops), default=None)

    def try_classes(self, square: KernelShape) -> None:
        """Give each class the same part of the remaining time."""
        names = [name for name in CLASSES if name != SQUARE]
        before = self.spent()
        for number, name in enumerate(names, 1):
            until = before + (ROUNDS["classes"][0] - before) * number / len(names)
            for shape in (square, *walks(square)):
                if self.spent() >= until:
                    break
                if same_layout(square, shape, self.dtype):
                    self.attempt(shape, "classes", name)

    def classes(self, square: KernelShape) -> dict[str, ClassResult]:
        found = {}
        for name in CLASSES:
            timed = {x.shape: x for x in self.timed(name) if name != SQUARE}
            if square in timed:
                alike = (x for x in timed.values() if same_layout(square, x.shape, self.dtype))
                best = max(alike, key=lambda x: x.gflops)
                found[name] = ClassResult(best, timed[square])
        return found


def tune(
    device: str,
    dtype: np.dtype[Any],
    budget_seconds: float,
    *,
    cache: TuningCache | None = None,
    progress: Callable[[TuningProgress], None] = lambda _: None,
) -> Tuning:
    """Search for the fastest kernel of a dtype on a device, and keep the winner in the cache.

    The search takes about `budget_seconds`, a little more for the final; after Ctrl-C the trials
    made until then are returned. Raises `DeviceUnavailableError` where the device is not there, or
    cannot multiply the dtype.
    """
    began = time.monotonic()
    facts = locate(device).facts
    cache = cache or TuningCache()
    default = default_shape(facts, dtype)
    pruned = prune(cores(dtype), dtype, facts)
    known = {(x.shape, x.n, x.of): x for x in cache.trials(facts, dtype)}

    def record(trial: Trial) -> None:
        with contextlib.suppress(OSError):  # the journal only saves time
            cache.add_trial(facts, dtype, trial)

    winner, last, interrupted = None, None, False
    with TuningProcess(device, dtype, _SLOWEST_SECONDS) as process:
        search = _Search(process, record, progress, budget_seconds, known, dtype)
        try:
            search.try_cores(pruned.kept, default)
            search.try_walks(default)
            winner, last = search.decide(default)
            if winner is not None:
                search.try_classes(winner.shape)
        except KeyboardInterrupt:
            interrupted = True
            winner = winner or search.best()
    classes = {} if winner is None else search.classes(winner.shape)
    unkept = "" if winner is None else _keep(cache, facts, dtype, winner, classes)
    return Tuning(
        device,
        facts,
        dtype.name,
        pruned,
        tuple(known.values()),
        winner,
        last,
        classes,
        time.monotonic() - began,
        interrupted,
        unkept,
    )


def _keep(
    cache: TuningCache,
    facts: Facts,
    dtype: np.dtype[Any],
    winner: Trial,
    classes: Mapping[str, ClassResult],
) -> str:
    """Write the winner to the cache; return the reason where that fails."""
    others = {name: each.best.shape for name, each in classes.items() if each.kept}
    try:
        cache.save(facts, dtype, winner.shape, winner.gflops, others)
    except OSError as error:
        return cache.unwritable() or str(error)
    return ""


def blas_gflops(dtype: np.dtype[Any], n: int) -> float:
    """Return the median GFLOP/s of NumPy's BLAS on an n×n×n product, to compare with."""
    rng = np.random.default_rng(n)
    a, b = (random_matrix(rng, (n, n), dtype) for _ in range(2))
    c = np.matmul(a, b)
    seconds = []
    for _ in range(_REPEATS["final"]):
        began = time.perf_counter()
        np.matmul(a, b, out=c)
        seconds.append(time.perf_counter() - began)
    return n**3 * flops_per_multiply_add(dtype.name) / float(np.median(seconds)) / 1e9
