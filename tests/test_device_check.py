"""The correctness test of a device: what it covers, and that it finds wrong products."""

import json
import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_limits
from typer.testing import CliRunner

import hdgemm
from hdgemm import device_check
from hdgemm.cli.app import app
from hdgemm.errors import DeviceUnavailableError
from hdgemm.options import STRATEGIES
from hdgemm.pipeline.devices.cuda import driven_by
from hdgemm.pipeline.devices.host import HostDevice
from tests.pipeline.devices.cuda.standin import Fault, StandIn
from tests.reference import DTYPES

#: Two C tiles, two k-chunks.
FEW_TILES = (80, 130, 128)


@pytest.fixture(autouse=True)
def one_blas_thread():
    """Let no threads of BLAS wait for each other: products are small, and there are many."""
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture
def short(monkeypatch):
    """Check fewer groups, in fewer tiles."""
    monkeypatch.setattr(device_check, "_DTYPES", ("float32",))
    monkeypatch.setattr(device_check, "_LADDER", ("double-buffering", "data-placement"))
    monkeypatch.setattr(device_check, "_TILE", FEW_TILES)


def test_every_strategy_of_each_dtype_is_checked(monkeypatch):
    assert device_check._DTYPES == DTYPES
    monkeypatch.setattr(device_check, "_DTYPES", ("float64", "complex64"))
    monkeypatch.setattr(device_check, "_TILE", FEW_TILES)
    shown = []
    result = hdgemm.check_device("host", progress=shown.append)
    assert result.passed
    assert tuple(shown) == result.groups
    assert {group.dtype for group in shown} == {"float64", "complex64"}
    assert {group.strategy for group in shown} == set(STRATEGIES[:4])
    assert {group.memory for group in shown} == {"plain"}
    assert {group.products for group in shown} == {16, 36}
    assert all(0 < group.worst < 0.1 for group in shown)
    assert json.loads(json.dumps(result.to_dict()))["passed"] is True


@pytest.mark.parametrize("order", [pytest.param("lazy", marks=pytest.mark.campaign), "ahead:2"])
def test_page_locked_arrays_are_checked_where_the_device_takes_them(short, order):
    standin = StandIn(order=order)
    with driven_by(standin.api()):
        result = hdgemm.check_device("cuda:0")
    assert [group.failure for group in result.groups] == [""] * 4
    assert [group.memory for group in result.groups] == ["plain", "page-locked"] * 2
    assert result.description.startswith("stand-in")


def test_a_check_is_cancelled_between_groups(short):
    cancel, shown = threading.Event(), []

    def show(group):
        shown.append(group)
        cancel.set()

    with pytest.raises(hdgemm.CancelledRunError, match="host"):
        hdgemm.check_device("host", progress=show, cancel=cancel)
    assert len(shown) == 1


def test_a_device_that_ignores_alpha_fails(short, monkeypatch):
    true_gemm = HostDevice.gemm
    monkeypatch.setattr(HostDevice, "gemm", lambda self, _alpha, *rest: true_gemm(self, 1.0, *rest))
    result = hdgemm.check_device("host")
    assert not result.passed
    assert not result
    assert all(group.worst > 1 and "trans_a=0" in group.failure for group in result.groups)


def test_a_nan_is_an_infinite_error():
    case = device_check._Operands.random("float64")
    right = np.asarray(case.exact, np.float64)
    assert case.error(right, 0.0) < 1
    right[3, 5] = np.nan
    assert case.error(right, 0.0) == float("inf")


def test_an_error_of_the_driver_fails_its_group_and_the_others_are_checked(short):
    standin = StandIn(faults=[Fault("memcpyAsync", 30, 1)])
    with driven_by(standin.api()):
        result = hdgemm.check_device("cuda:0")
    failures = [group.failure for group in result.groups if not group.passed]
    assert len(failures) == 1
    assert "memcpyAsync failed" in failures[0]


def test_a_device_that_is_not_there_is_an_error():
    with pytest.raises(DeviceUnavailableError, match="there is no device 'gpu'"):
        hdgemm.check_device("gpu")


def check_by_command(monkeypatch, faults, *words):
    """Return the result of the command for float64 and one strategy on a stand-in with faults."""
    monkeypatch.setattr(device_check, "_DTYPES", ("float64",))
    monkeypatch.setattr(device_check, "_LADDER", ("data-placement",))
    monkeypatch.setattr(device_check, "_TILE", FEW_TILES)
    with driven_by(StandIn(faults=faults).api()):
        return CliRunner().invoke(app, ["devices", "--check", "cuda:0", *words])


@pytest.mark.parametrize(
    ("faults", "code", "word"), [([], 0, "PASSED"), ([Fault("dgemm", 40, 13)], 1, "FAILED")]
)
def test_the_command_prints_a_line_a_group_and_exits_with_the_outcome(
    monkeypatch, faults, code, word
):
    result = check_by_command(monkeypatch, faults)
    lines = result.stdout.splitlines()
    assert result.exit_code == code
    assert len(lines) == 3
    assert lines[0].startswith("float64    data-placement   plain")
    assert word in lines[-1]


def test_the_command_prints_json_and_exits_with_the_outcome(monkeypatch):
    result = check_by_command(monkeypatch, [Fault("dgemm", 40, 13)], "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["passed"] is False
