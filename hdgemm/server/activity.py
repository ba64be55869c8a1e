"""Throughput and queue of the last day: what all jobs did, in intervals of a quarter of an hour."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import sqlalchemy as sa

from hdgemm.server.tables import Job

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DAY: Final = 86400.0
_INTERVALS: Final = 96
#: Jobs whose operations are spread over the intervals at once: bounds the memory.
_TOGETHER: Final = 4096


def last_day(conn: sa.Connection, now: float) -> dict[str, list[float]]:
    """Return the activity at 97 times of the last day, oldest first.

    `at` are seconds before now. Each value is of the interval that ends then: `waiting` and
    `running` are the most jobs at once, `gflops` the mean of 10⁹ flop/s of all jobs, `finished` the
    jobs that ended. Each job's operations are spread evenly over its run. Deleted jobs are not
    counted.
    """
    jobs = _read(conn, now)
    times = now - _DAY + np.arange(_INTERVALS + 1) * (_DAY / _INTERVALS)
    created, started, ended, _ = jobs
    left = np.minimum(started, ended)
    finished = _number_before(ended, times)
    return {
        "at": (times - now).tolist(),
        "waiting": _most_at_once(created, left, times),
        "running": _most_at_once(started, ended[np.isfinite(started)], times),
        "gflops": [0.0, *(np.diff(_operations(jobs, times, now)) * (_INTERVALS / _DAY)).tolist()],
        "finished": [0.0, *np.diff(finished).tolist()],
    }


def _read(conn: sa.Connection, now: float) -> NDArray[Any]:
    """Return creation, start, end and 10⁹ operations of jobs, a row each; no time is infinite."""
    report, progress = Job.report, Job.progress
    of_report = report["gflops"].as_float() * report["seconds"].as_float()
    of_progress = progress["gflops"].as_float() * progress["elapsed"].as_float()
    recent = sa.or_(Job.finished.is_(None), Job.finished > now - _DAY)
    never = float("inf")
    found = [
        (created, started or never, ended or never, reported or so_far or 0.0)
        for created, started, ended, reported, so_far in conn.execute(
            sa.select(Job.created, Job.started, Job.finished, of_report, of_progress).where(recent)
        )
    ]
    return np.array(found, np.float64).reshape(-1, 4).T


def _number_before(moments: NDArray[Any], times: NDArray[Any]) -> NDArray[Any]:
    """Return how many moments are not after each time."""
    return np.searchsorted(np.sort(moments), times, side="right")


def _most_at_once(begun: NDArray[Any], over: NDArray[Any], times: NDArray[Any]) -> list[int]:
    """Return the jobs at the first time, then the most at once from each time to the next."""
    moments = np.concatenate([over, begun])
    change = np.concatenate([np.full(len(over), -1), np.ones(len(begun), int)])
    order = np.argsort(moments, kind="stable")  # at one moment, jobs end before others begin
    count = np.concatenate([[0], np.cumsum(change[order])])
    places = _number_before(moments, times)
    first = count[places[0]]
    return [int(first), *(int(count[a : b + 1].max()) for a, b in pairwise(places))]


def _operations(jobs: NDArray[Any], times: NDArray[Any], now: float) -> NDArray[Any]:
    """Return the 10⁹ operations done until each time."""
    done = np.zeros(len(times))
    _, started, ended, work = jobs[:, np.isfinite(jobs[1])]
    ended = np.minimum(ended, now)
    for first in range(0, len(work), _TOGETHER):
        some = slice(first, first + _TOGETHER)
        length = np.maximum(ended[some] - started[some], 1e-3)
        share = np.clip((times[:, None] - started[some]) / length, 0.0, 1.0)
        done += share @ work[some]
    return done
