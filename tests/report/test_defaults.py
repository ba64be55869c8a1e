"""Defaults of options: built in, from variables, set for the process or for a block."""

import numpy as np
import pytest

import hdgemm
from hdgemm.errors import InputError
from hdgemm.options import Options, built_in_options, set_options


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in ("DEVICES", "HOST_MEMORY", "DEVICE_MEMORY", "THREADS", "STRATEGY", "TILE",
                 "VERIFY", "SPLIT"):  # fmt: skip
        monkeypatch.delenv(f"HDGEMM_{name}", raising=False)


def test_a_default_holds_for_a_block_and_is_taken_back():
    with hdgemm.set_options(host_memory=1.5e9, devices="host"):
        assert Options().host_bytes == 1_500_000_000
        with hdgemm.set_options(host_memory="2GB"):
            assert Options().host_bytes == 2_000_000_000
            assert Options(host_memory="1GB").host_bytes == 1_000_000_000
            assert Options().devices == "host"
        assert Options().host_bytes == 1_500_000_000
        assert built_in_options().host_bytes is None
    assert Options() == built_in_options()


def test_variables_give_defaults(monkeypatch):
    for name, text in {
        "DEVICES": "host,opencl:0", "HOST_MEMORY": "1.5GB", "DEVICE_MEMORY": "1GiB",
        "THREADS": "3", "STRATEGY": "data-reuse", "TILE": "64,32,16", "VERIFY": "tiles",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"HDGEMM_{name}", text)
    assert Options() == built_in_options(
        devices=("host", "opencl:0"), host_memory=1_500_000_000, device_memory=1 << 30,
        threads=3, strategy="data-reuse", tile=(64, 32, 16), verify="tiles",
    )  # fmt: skip
    monkeypatch.setenv("HDGEMM_VERIFY", "true")
    assert Options().verify is True
    with set_options(threads=None, verify=False):
        assert Options().threads is None
        assert Options().verify is False


@pytest.mark.parametrize(
    ("name", "text"),
    [("THREADS", "many"), ("THREADS", "0"), ("TILE", "64"), ("HOST_MEMORY", "much"),
     ("STRATEGY", "guess"), ("VERIFY", "maybe")],
)  # fmt: skip
def test_a_wrong_variable_is_refused_by_name(monkeypatch, name, text):
    monkeypatch.setenv(f"HDGEMM_{name}", text)
    with pytest.raises(InputError, match=f"variable HDGEMM_{name}={text}: ") as refused:
        Options()
    assert "invalid literal" not in str(refused.value)


def test_wrong_defaults_are_refused_and_change_nothing():
    with pytest.raises(InputError, match="hostmemory"):
        set_options(hostmemory="1GB")
    with pytest.raises(InputError, match="strategy"):
        set_options(strategy="guess")
    assert Options() == built_in_options()


def test_products_of_arrays_follow_the_defaults(monkeypatch):
    a = np.random.default_rng(0).standard_normal((200, 200))
    with hdgemm.set_options(devices="abacus:0"), pytest.raises(hdgemm.DeviceUnavailableError):
        hdgemm.matmul(a, a)
    monkeypatch.setenv("HDGEMM_DEVICES", "abacus:0")
    with pytest.raises(hdgemm.DeviceUnavailableError):
        hdgemm.matmul(a, a)


@pytest.mark.parametrize("options", [{}, {"host_memory": "1GB"}, "1GB", 5])
def test_other_things_than_options_are_refused_by_name(options):
    a = np.ones((3, 3))
    for call in (
        lambda: hdgemm.matmul(a, a, options=options),
        lambda: hdgemm.multiply(a, a, out=a.copy(), options=options),
        lambda: hdgemm.dgemm(1.0, a, a, options=options),
        lambda: hdgemm.plan(a, a, options=options),
        lambda: hdgemm.plan_gemm(3, 3, 3, options=options),
        lambda: hdgemm.Session(options),
        lambda: hdgemm.linalg.cholesky(a, options=options),
    ):
        with pytest.raises(InputError, match=f"hdgemm.Options, got {type(options).__name__}"):
            call()


@pytest.mark.parametrize("memory", [1.5e9, 1_500_000_000, np.float64(1.5e9), "1.5GB"])
def test_sizes_are_numbers_or_texts(memory):
    assert Options(host_memory=memory).host_bytes == 1_500_000_000


@pytest.mark.parametrize("memory", [True, -1, float("nan"), float("inf"), "1.5 apples", [1]])
def test_sizes_that_are_none_are_refused_by_name(memory):
    with pytest.raises(InputError, match="host_memory"):
        Options(host_memory=memory)
