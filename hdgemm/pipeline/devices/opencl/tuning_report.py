"""The result of a search as JSON, and the distribution of kernel speeds (figure 8 of BEAST)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.pictures.figure import new_figure
from hdgemm.pipeline.devices.opencl.kernel_shapes import class_extents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hdgemm.pipeline.devices.opencl.tuner import Tuning
    from hdgemm.pipeline.devices.opencl.tuning_cache import Trial

_BINS: Final = 40


def to_json(tuning: Tuning, peers: Mapping[str, float]) -> dict[str, Any]:
    """Return a search's result as plain values; speeds in GFLOP/s."""
    winner = tuning.winner
    return {
        "device": tuning.device,
        "description": tuning.facts.device,
        "platform": tuning.facts.platform,
        "driver": tuning.facts.driver,
        "dtype": tuning.dtype,
        "seconds": tuning.seconds,
        "interrupted": tuning.interrupted,
        "funnel": tuning.funnel(),
        "winner": _trial(winner),
        "gflops": winner.gflops if winner else None,
        "default": _trial(tuning.default),
        "classes": {
            name: {
                "extents": list(class_extents(name, each.best.n)),
                "kept": each.kept,
                "best": _trial(each.best),
                "square": _trial(each.square),
            }
            for name, each in tuning.classes.items()
        },
        "unkept": tuning.unkept,
        "peers": dict(peers),
        "speeds": tuning.speeds(),
        "trials": [_trial(each) for each in tuning.trials],
    }


def _trial(trial: Trial | None) -> dict[str, Any] | None:
    return None if trial is None else trial.to_json()


def write_report(path: Path, values: Mapping[str, Any]) -> None:
    """Write a report as JSON; NaN, the error of a wrong result, becomes null."""
    finite = json.loads(json.dumps(values), parse_constant=lambda _: None)
    path.write_text(json.dumps(finite, indent=1) + "\n", encoding="utf-8")


def histogram(speeds: Sequence[float]) -> tuple[list[int], float, float]:
    """Count speeds in equal steps from 0 to the fastest; also return both ends."""
    if not speeds:
        return [], 0.0, 0.0
    counts, edges = np.histogram(speeds, bins=_BINS, range=(0.0, max(speeds)))
    return [int(count) for count in counts], float(edges[0]), float(edges[-1])


def draw(path: Path, tuning: Tuning) -> None:
    """Draw the kernels' speeds in ascending order and their distribution; needs Matplotlib."""
    speeds = tuning.speeds()
    figure = new_figure(8, 3.2, "a picture of the speeds")
    ranked, spread = figure.subplots(1, 2)
    ranked.plot(range(1, len(speeds) + 1), speeds, ".", markersize=3)
    ranked.set(xlabel="kernel, slowest first", ylabel="GFLOP/s", ylim=(0, None))
    spread.hist(speeds, bins=_BINS)
    spread.set(xlabel="GFLOP/s", ylabel="kernels")
    figure.suptitle(f"{len(speeds)} {tuning.dtype} kernels on {tuning.facts.device}")
    figure.savefig(path, dpi=110)
