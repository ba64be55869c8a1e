"""Texts of the command line become the library's values, or clear errors."""

import pytest

from hdgemm.cli.arguments import make_options, parse_scalar
from hdgemm.cli.demonstration import square_order
from hdgemm.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2.0),
        ("-0.5", -0.5),
        ("1e-3", 1e-3),
        ("1+2j", 1 + 2j),
        ("1 - 2j", 1 - 2j),
        ("nan", None),
    ],
)
def test_scalars(text, value):
    found = parse_scalar(text)
    if value is None:
        assert found != found
    else:
        assert found == value
    assert isinstance(found, complex) == ("j" in text)


@pytest.mark.parametrize("text", ["", "two", "1,5", "1+2i"])
def test_scalars_that_are_none(text):
    with pytest.raises(InputError, match="number"):
        parse_scalar(text)


@pytest.mark.parametrize("text", ["128,256,64", "128x256x64"])
def test_tiles(text):
    assert make_options(tile=text).tile == (128, 256, 64)


@pytest.mark.parametrize("text", ["", "128", "128,256", "a,b,c", "1,2,3,4", "0,1,1"])
def test_tiles_that_are_none(text):
    with pytest.raises(InputError, match="tile"):
        make_options(tile=text)


def test_options_take_what_was_given():
    options = make_options(host_memory="1.5GB", device=["opencl:0", "host"], threads=2)
    assert options.host_bytes == 1_500_000_000
    assert options.devices == ("opencl:0", "host")
    assert make_options().devices == "auto"


def test_the_demo_keeps_to_its_size_and_its_ratio():
    n = square_order(2 * 10**9, 400 * 10**6)
    assert n % 64 == 0
    assert 4 * 400 * 10**6 <= 16 * n * n <= 2 * 10**9


@pytest.mark.parametrize(("size", "memory"), [(10**9, 300 * 10**6), (10, 1)])
def test_the_demo_refuses_what_proves_little(size, memory):
    with pytest.raises(InputError, match="4 times"):
        square_order(size, memory)
