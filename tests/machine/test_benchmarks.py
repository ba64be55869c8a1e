"""Benchmarks end at their deadline, whatever the machine does meanwhile."""

import os
import threading
from pathlib import Path

import pytest

from hdgemm.errors import CancelledRunError
from hdgemm.machine import benchmarks
from hdgemm.machine.benchmarks import Deadline, measure_blas, measure_disk, measure_executor
from hdgemm.pipeline.validate import validate
from tests.unnamed_files import without_unnamed_files


@pytest.mark.parametrize(("seconds", "runs"), [(1e6, 9), (0.0, 2)])
def test_a_benchmark_past_its_deadline_is_not_repeated(seconds, runs):
    calls = []

    def measure():
        calls.append(1)
        return float(len(calls))

    assert benchmarks._best(measure, Deadline(seconds)) == 1.0
    assert len(calls) == runs


def test_a_slow_blas_is_measured_with_a_small_product(monkeypatch):
    shapes = []

    def matmul(a, b, out=None):
        shapes.append(a.shape)

    monkeypatch.setattr(benchmarks.np, "matmul", matmul)
    measure_blas(1, Deadline(0.0))
    assert max(rows for rows, _ in shapes) == 256
    assert len(shapes) <= 6


def test_a_disk_that_answers_nothing_in_time_is_slow(tmp_path, monkeypatch):
    answer = threading.Event()
    monkeypatch.setattr(os, "pwritev", lambda *_: answer.wait(240))
    try:
        read, write = measure_disk(tmp_path, Deadline(0.0))
    finally:
        answer.set()
    assert read is None
    assert 0 < write <= (8 << 20) / 0.1


def test_a_disk_that_reports_an_error_has_no_rate(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pwritev", fail)
    assert measure_disk(tmp_path, Deadline(10.0)) == (None, None)


def test_a_disk_s_rates_count_the_pieces_that_were_moved(tmp_path):
    read, write = measure_disk(tmp_path, Deadline(240.0))
    assert read > 0
    assert write > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_killed_measurement_of_a_disk_leaves_nothing(tmp_path, monkeypatch, unnamed):
    if not unnamed:
        without_unnamed_files(monkeypatch)
    names, files, write = [], set(), os.pwritev

    def watch(fd, *rest):
        names.extend(tmp_path.iterdir())
        files.add(Path(f"/proc/self/fd/{fd}").readlink().parent)
        return write(fd, *rest)

    monkeypatch.setattr(os, "pwritev", watch)
    assert None not in measure_disk(tmp_path, Deadline(240.0))
    assert names == []  # a file without a name ends with its process
    assert files == {tmp_path}


def test_the_executor_s_plan_is_valid_and_takes_time():
    validate(benchmarks._tiny_plan())
    assert measure_executor(Deadline(0.0)) > 0


def test_a_cancelled_deadline_is_over():
    cancel = threading.Event()
    deadline = Deadline(100.0, cancel)
    deadline.check()
    assert deadline.seconds > 0
    cancel.set()
    assert deadline.seconds == 0.0
    with pytest.raises(CancelledRunError):
        deadline.check()
