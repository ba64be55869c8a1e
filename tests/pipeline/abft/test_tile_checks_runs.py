"""verify="tiles" through the public calls: files, durable runs, several devices, the commands."""

import argparse
import json
import re

import numpy as np
import pytest

import hdgemm
from bench.tile_checks import clean
from hdgemm.errors import InputError, WrongTileError
from hdgemm.options import Options
from hdgemm.pipeline.devices.host import HostDevice
from hdgemm.pipeline.devices.protocol import view
from hdgemm.pipeline.devices.recording import RecordingDevice
from hdgemm.planning.case import checking_bytes
from tests.cli.commands import command_line
from tests.pipeline.abft.tile_case import draw
from tests.reference import DTYPES, assert_close_in_eps

CHECKED = Options(verify="tiles", devices="host")


@pytest.fixture
def operands():
    rng = np.random.default_rng(1)
    return draw(rng, (90, 70), "float64"), draw(rng, (70, 110), "float64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("beta", [0.0, -0.5])
def test_arrays_in_ram(dtype, order, beta):
    rng = np.random.default_rng(2)
    a, b, c = (np.asarray(draw(rng, s, dtype), order=order) for s in ((60, 40), (40, 50), (60, 50)))
    old = c.copy()
    report = hdgemm.multiply(
        a, b, alpha=1.5, beta=beta, c=c if beta else None, out=c, options=CHECKED
    )
    assert_close_in_eps(c, a, b, alpha=1.5, beta=beta, c=old if beta else None)
    assert (report.checks.tiles, report.checks.recomputed) == (1, 0)
    assert 0 < report.checks.worst <= 1
    assert json.loads(report.to_json())["checks"]["tiles"] == 1


def test_files_within_the_limit(tmp_path, operands):
    a, b = operands
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", np.asfortranarray(b))
    options = Options(verify="tiles", devices="host", tile=(32, 48, 16), host_memory="4MB")
    report = hdgemm.multiply(
        tmp_path / "A.npy", tmp_path / "B.npy", out=tmp_path / "C.npy", options=options
    )
    assert_close_in_eps(np.load(tmp_path / "C.npy"), a, b)
    assert report.checks.tiles == 9
    assert report.plan["host_bytes"] <= 4_000_000 - checking_bytes(4_000_000)


def test_several_devices_share_the_checks(operands):
    a, b = operands
    out = np.empty((90, 110))
    options = Options(verify="tiles", devices=("host", "opencl:0"), tile=(32, 48, 70))
    report = hdgemm.multiply(a, b, out=out, options=options)
    assert_close_in_eps(out, a, b)
    assert report.checks.tiles == sum(len(share.tiles) for share in report.split.shares.values())


def test_a_durable_run_is_stopped_and_goes_on(tmp_path, operands, monkeypatch):
    a, b = operands
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    options = Options(verify="tiles", devices="host", tile=(32, 48, 35))
    job = {"out": tmp_path / "C.npy", "options": options, "checkpoint": True}
    right = HostDevice.gemm
    calls = []

    def failing(self, alpha, a, b, beta, c, after):
        done = right(self, alpha, a, b, beta, c, after)
        calls.append(c)
        if len(calls) > 9:
            view(c)[0, 0] += 1.0
        return done

    with monkeypatch.context() as patch:
        patch.setattr(HostDevice, "gemm", failing)
        with pytest.raises(WrongTileError, match="host computed a wrong C tile"):
            hdgemm.multiply(tmp_path / "A.npy", tmp_path / "B.npy", **job)
    assert not (tmp_path / "C.npy").exists()
    report = hdgemm.multiply(tmp_path / "A.npy", tmp_path / "B.npy", **job)
    assert report.resumption.kept + report.checks.tiles == 9
    assert report.resumption.kept >= 1
    assert_close_in_eps(np.load(tmp_path / "C.npy"), a, b)


def test_old_values_that_are_gone_stop_the_run_at_once(monkeypatch, operands):
    a, b = operands
    right = HostDevice.gemm

    def failing(self, alpha, a, b, beta, c, after):
        done = right(self, alpha, a, b, beta, c, after)
        c.tile.buffer[0, 5] += 1.0
        return done

    c = np.zeros((90, 110))
    monkeypatch.setattr(HostDevice, "gemm", failing)
    with pytest.raises(WrongTileError, match="its old values are gone") as caught:
        hdgemm.multiply(a, b, beta=1.0, c=c, out=c, options=CHECKED)
    assert (caught.value.row, caught.value.device) == (0, "host")


def test_the_command_says_what_was_checked(tmp_path, operands, monkeypatch, capsys):
    command = command_line(monkeypatch, capsys)
    monkeypatch.chdir(tmp_path)
    for name, x in zip("AB", operands, strict=True):
        np.save(tmp_path / f"{name}.npy", x)
    done = command(
        "multiply", "A.npy", "B.npy", "--out", "C.npy", "--verify-tiles", "--device", "host"
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ tiles? checked in ", done.stdout)
    both = command("multiply", "A.npy", "B.npy", "--out", "C.npy", "--verify-tiles", "--verify")
    assert both.returncode == 2
    assert "choose one" in both.stderr


def test_other_words_are_refused():
    with pytest.raises(InputError, match="'tiles'"):
        Options(verify="rows")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("strategy", ["initial", "data-placement"])
def test_an_opencl_device_checks_and_computes_again(dtype, strategy, monkeypatch):
    pytest.importorskip("pyopencl")
    from hdgemm.pipeline.devices.opencl._device import OpenCLDevice

    rng = np.random.default_rng(3)
    a, b, c = (draw(rng, shape, dtype) for shape in ((130, 70), (70, 150), (130, 150)))
    options = Options(verify="tiles", devices="opencl:0", tile=(64, 64, 32), strategy=strategy)
    out = np.empty((130, 150), dtype)
    clean = hdgemm.multiply(a, b, beta=2.0, c=c, out=out, options=options)
    assert_close_in_eps(out, a, b, beta=2.0, c=c)
    assert (clean.checks.tiles, clean.checks.recomputed) == (9, 0)

    right, uploads = OpenCLDevice.upload, []

    def failing(self, source, target, after):
        if target.tile.operand == "A" and min(source.shape) > 1 and not uploads:
            uploads.append(target)
            source = source.copy()
            source[3, 5] += 1000
        return right(self, source, target, after)

    monkeypatch.setattr(OpenCLDevice, "upload", failing)
    mended = hdgemm.multiply(a, b, beta=2.0, c=c, out=out, options=options)
    assert mended.checks.recomputed >= 1
    assert_close_in_eps(out, a, b, beta=2.0, c=c)


def test_the_service_takes_the_word():
    pytest.importorskip("fastapi")
    from hdgemm.server.computations import job_options, library_options
    from hdgemm.server.settings import Settings

    for word, checked in (("tiles", True), (True, False)):
        wanted = job_options("gemm", {"options": {"verify": word}})
        assert library_options(wanted, Settings()).checks_tiles is checked


@pytest.mark.campaign
def test_thousands_of_clean_tiles_raise_no_alarm():
    found = clean(argparse.Namespace(tiles=4000, seed=7))
    assert found["tiles"] >= 4000
    assert found["alarms"] == 0
    assert found["worst"] <= 1
    assert all(kind["tiles"] > 0 for kind in found["by_kind"].values())


@pytest.mark.parametrize("strategy", ["double-buffering", "data-reuse", "data-placement"])
@pytest.mark.parametrize("device", ["opencl:0", "recording"])
def test_plans_of_the_planner_are_checked_on_devices_with_memory_of_their_own(
    monkeypatch, device, strategy
):
    """A plan that ends in smaller units has A tiles with more rows than a unit."""
    if device == "recording":
        monkeypatch.setattr(
            "hdgemm.run.session.open_device", lambda name, *_, **__: RecordingDevice(name=name)
        )
    rng = np.random.default_rng(6)
    a, b, c = (rng.standard_normal((300, 300)) for _ in range(3))
    out = c.copy()
    options = Options(
        devices=device, host_memory="20MB", device_memory="4MB", verify="tiles", strategy=strategy
    )
    report = hdgemm.multiply(a, b, beta=0.5, c=out, out=out, options=options)
    assert_close_in_eps(out, a, b, beta=0.5, c=c)
    assert report.checks.tiles == report.plan["units"]
