"""Disks that fill up, files cut short, power that fails: a clear error, and right bits later."""

import errno
import os
import random

import pytest

from hdgemm.durable.checkpoint import Checkpoint
from hdgemm.errors import HdgemmError, MatrixIOError
from hdgemm.matrices.files import BlockFile
from tests.counting import nth_call
from tests.durable.durable_case import Case, shared_case
from tests.durable.power_loss import PowerLoss


@pytest.mark.parametrize("point", range(1, 40, 2))
def test_a_disk_that_fills_up(tmp_path_factory, point, monkeypatch):
    mode = ("new", "update")[point % 4 // 2]
    case = shared_case(tmp_path_factory, mode)
    last, failed = nth_call(point * (3 if mode == "update" else 1)), []

    def full(self, offset, memory, write=BlockFile.write):
        if last():
            failed.append(str(self.path))
            raise self._error("write", offset, memory.size, OSError(errno.ENOSPC, "full"))
        write(self, offset, memory)

    with monkeypatch.context() as patch:
        patch.setattr(BlockFile, "write", full)
        with pytest.raises(MatrixIOError, match="cannot write") as caught:
            case.run()
    assert [caught.value.path] == failed
    assert caught.value.offset >= 0
    report = case.run()
    assert case.sha() == case.expected
    assert report.resumption.kept >= min(point // 40, 1)
    assert case.leftovers() == []


@pytest.mark.parametrize("point", range(1, 30, 7))
def test_a_journal_that_cannot_grow(tmp_path_factory, point, monkeypatch):
    case = shared_case(tmp_path_factory, ("new", "update")[point % 2])
    last = nth_call(point)

    def full(fd, data, offset, pwrite=os.pwrite):
        if last():
            raise OSError(errno.ENOSPC, "full")
        return pwrite(fd, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr("hdgemm.durable.journal.os.pwrite", full)
        with pytest.raises(MatrixIOError, match="cannot append to the journal"):
            case.run()
    case.run()
    assert case.sha() == case.expected


@pytest.mark.parametrize("point", [0, 4, 8, 9, 16, 19])
def test_an_input_cut_short_during_the_run(tmp_path_factory, point):
    case = shared_case(tmp_path_factory, ("new", "replace", "update")[point % 3])
    a, status = case.path("A"), case.path("A").stat()
    whole = a.read_bytes()

    def cut(event):
        if event.stage == "load1" and event.number == point:
            os.truncate(a, 128 + 40 * point)

    try:
        with pytest.raises(MatrixIOError, match="cut short during the run") as caught:
            case.run(observer=cut)
    finally:
        a.write_bytes(whole)
        os.utime(a, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert caught.value.path == str(a)
    assert caught.value.offset >= 40 * point
    case.run()
    assert case.sha() == case.expected


@pytest.mark.campaign
@pytest.mark.parametrize("mode", ["new", "over", "replace", "update"])
def test_power_may_fail_at_any_write(memory_folder, mode, monkeypatch):
    case = Case(memory_folder, mode)
    power = PowerLoss(case.folder, monkeypatch)
    case.run()
    calls, kept = power.calls, 0
    rng = random.Random(mode)
    for seed in range(14):
        case.reset()
        power.on()
        for _ in range(2):
            power.fails_during(case.run, rng.randint(1, calls), seed)
        kept += case.run().resumption.kept
        assert case.sha() == case.expected, f"seed {seed}"
    assert kept > 30


@pytest.mark.campaign
@pytest.mark.parametrize("mode", ["new", "replace", "update"])
def test_power_may_fail_while_c_is_published(memory_folder, mode, monkeypatch):
    case = Case(memory_folder, mode)
    power = PowerLoss(case.folder, monkeypatch)
    finish, failures = Checkpoint.finish, 0
    for call in range(1, 12):
        for seed in range(2):
            case.reset()
            power.on()

            def cut_off(checkpoint, call=call):
                power.fail_at(call)
                finish(checkpoint)

            with monkeypatch.context() as patch:
                patch.setattr(Checkpoint, "finish", cut_off)
                try:
                    case.run()
                except (OSError, HdgemmError):
                    failures += power.failed
            power.strike(seed)
            report = case.run()
            assert report.resumption.kept == report.resumption.tiles
            assert case.sha() == case.expected
            power.on()
    assert failures >= 6
