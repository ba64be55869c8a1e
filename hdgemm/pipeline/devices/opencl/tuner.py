"""The search: prune by rule, try best-first, refine what leads, decide among the last few.

Three rounds share the budget, each with a larger product and fewer candidates: cores, chosen
best-first from groups of like ones; walks, the neighbours of the leading cores; and a final between
the leaders and the shipped default. What is left goes to the classes of products that are not
square: the winner's walks, which fit the same slots, on the class's product. Every result is
written to a journal as it comes, so that a search that was interrupted goes on where it was.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hdgemm.pipeline.devices.opencl.bench import Bench
from hdgemm.pipeline.devices.opencl.candidates import BestFirst
from hdgemm.pipeline.devices.opencl.shape_classes import CLASSES, SQUARE, same_layout
from hdgemm.pipeline.devices.opencl.find import locate
from hdgemm.pipeline.devices.opencl.pruning import Pruned, prune
from hdgemm.pipeline.devices.opencl.space import cores, walks
from hdgemm.pipeline.devices.opencl.store import Store, default_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy as np

    from hdgemm.pipeline.devices.opencl.driver import Facts
    from hdgemm.pipeline.devices.opencl.result import Result
    from hdgemm.pipeline.devices.opencl.shape import Shape

#: Share of the budget after which a round ends, and the extent of its products.
ROUNDS: Final[Mapping[str, tuple[float, int]]] = {
    "cores": (0.45, 384),
    "walks": (0.65, 1024),
    "final": (0.75, 2048),
    "classes": (1.0, 2048),
}
_LEADERS: Final = {"walks": 3, "final": 4}
_REPEATS: Final = {"cores": 2, "walks": 2, "final": 5, "classes": 3}
#: How much faster than the square class's shape another one must be to be kept for a class.
_WORTHWHILE: Final = 1.03
_SLOWEST_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is: its round, the share of the budget that is spent, the best so far."""

    round: str
    spent: float
    tried: int
    best_gflops: float


@dataclass(frozen=True, slots=True)
class ClassResult:
    """The fastest shape found for a class of products, beside the square class's shape there."""

    best: Result
    square: Result

    @property
    def kept(self) -> bool:
        """Whether the class has a shape of its own."""
        return self.best.gflops > _WORTHWHILE * self.square.gflops


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a search found.

    `results` holds every trial, also those of earlier searches that this one went on from;
    `winner` is None where nothing was timed; `classes` holds those classes that were reached in
    time. `unkept` says why the winner could not be kept, empty if it was.
    """

    device: str
    facts: Facts
    dtype: str
    pruned: Pruned
    results: tuple[Result, ...]
    winner: Result | None
    default: Result | None
    classes: Mapping[str, ClassResult]
    seconds: float
    interrupted: bool
    unkept: str

    def funnel(self) -> dict[str, Any]:
        """Count candidates from all there are to those that were timed; cores only."""
        outcomes = dict.fromkeys(("failed", "crashed", "slow", "wrong", "timed"), 0)
        first = [each for each in self.results if each.n == ROUNDS["cores"][1]]
        for result in first:
            outcomes[result.outcome] += 1
        kept = len(self.pruned.kept)
        return {
            "candidates": self.pruned.candidates,
            "pruned": dict(self.pruned.removed),
            "kept": kept,
            "not_tried": kept - len(first),
            **outcomes,
        }

    def speeds(self) -> list[float]:
        """Return the GFLOP/s of every core that was timed, at one extent."""
        n = ROUNDS["cores"][1]
        return sorted(x.gflops for x in self.results if x.outcome == "timed" and x.n == n)


@dataclass(slots=True)
class _Search:
    bench: Bench
    journal: Callable[[Result], None]
    progress: Callable[[Progress], None]
    budget: float
    known: dict[tuple[Shape, int, str], Result]
    dtype: np.dtype[Any]
    began: float = field(default_factory=time.monotonic)

    def spent(self) -> float:
        return (time.monotonic() - self.began) / self.budget

    def attempt(self, shape: Shape, stage: str, of: str = SQUARE) -> Result:
        n = ROUNDS[stage][1]
        result = self.known.get((shape, n, of))
        if result is None:
            result = self.bench.try_shape(shape, n, _REPEATS[stage], of)
            self.known[shape, n, of] = result
            self.journal(result)
        best = max((x.gflops for x in self.timed()), default=0.0)
        self.progress(Progress(stage, min(1.0, self.spent()), len(self.known), best))
        return result

    def timed(self, of: str = SQUARE) -> list[Result]:
        return [x for x in self.known.values() if x.outcome == "timed" and x.of == of]

    def leaders(self, n: int, count: int) -> list[Shape]:
        timed = [x for x in self.timed() if x.n == n]
        return [x.shape for x in sorted(timed, key=lambda x: -x.gflops)[:count]]

    def try_cores(self, kept: Iterable[Shape], default: Shape) -> None:
        self.attempt(default, "cores")
        order = BestFirst(kept)
        while self.spent() < ROUNDS["cores"][0] and (shape := order.take()) is not None:
            result = self.attempt(shape, "cores")
            order.learn(shape, result.gflops if result.outcome == "timed" else 0.0)
            if result.outcome in {"crashed", "slow"}:
                order.give_up(shape)

    def try_walks(self, default: Shape) -> None:
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

    def decide(self, default: Shape) -> tuple[Result | None, Result]:
        last = self.attempt(default, "final")
        for shape in self.leaders(ROUNDS["walks"][1], _LEADERS["final"]):
            if self.spent() < 1.0:
                self.attempt(shape, "final")
        return self.best(), last

    def best(self) -> Result | None:
        """Return the fastest at the largest extent reached: the larger, the more it says."""
        return max(self.timed(), key=lambda x: (x.n, x.gflops), default=None)

    def try_classes(self, square: Shape) -> None:
        """Give each class the same part of the time that is left."""
        names = [name for name in CLASSES if name != SQUARE]
        before = self.spent()
        for number, name in enumerate(names, 1):
            until = before + (ROUNDS["classes"][0] - before) * number / len(names)
            for shape in (square, *walks(square)):
                if self.spent() >= until:
                    break
                if same_layout(square, shape, self.dtype):
                    self.attempt(shape, "classes", name)

    def classes(self, square: Shape) -> dict[str, ClassResult]:
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
    store: Store | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Tuning:
    """Search for the fastest kernel of a dtype on a device, and keep the winner in the store.

    Parameters
    ----------
    device
        As in `Options.devices`.
    budget_seconds
        About how long to search; the final may take a little more.

    Returns
    -------
    Tuning
        Also after Ctrl-C, with what was known then.

    Raises
    ------
    DeviceUnavailableError
        When the device is not there, or cannot multiply the dtype.
    """
    began = time.monotonic()
    facts, _ = locate(device)
    store = store or Store()
    default = default_shape(facts, dtype)
    pruned = prune(cores(dtype), dtype, facts)
    known = {(x.shape, x.n, x.of): x for x in store.journal(facts, dtype)}
    unkept = store.unwritable()

    def note(result: Result) -> None:
        if not unkept:
            store.note(facts, dtype, result)

    winner, last, interrupted = None, None, False
    with Bench(device, dtype, _SLOWEST_SECONDS) as bench:
        search = _Search(bench, note, progress, budget_seconds, known, dtype)
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
    if winner is not None and not unkept:
        others = {name: each.best.shape for name, each in classes.items() if each.kept}
        store.save(facts, dtype, winner.shape, winner.gflops, others)
    return Tuning(
        device, facts, dtype.name, pruned, tuple(known.values()), winner, last, classes,
        time.monotonic() - began, interrupted, unkept,
    )  # fmt: skip
