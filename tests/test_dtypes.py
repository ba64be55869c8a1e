"""A new dtype is one row of one table: no other module lists the supported dtypes."""

import ast
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from hdgemm.dtypes import (
    CONVERTED,
    ELEMENT_TYPES,
    LETTERS,
    SUPPORTED,
    DTypeName,
    StoredDTypeName,
    listed,
)
from hdgemm.fortran import potrf
from tests.reference import DTYPES

PACKAGE = Path(__file__).resolve().parent.parent / "hdgemm"
#: A module of the tests in all but its place.
STAND_IN = PACKAGE / "pipeline" / "devices" / "cuda" / "standin"


def listing(path):
    """Return whether the strings or attributes of a module name all complex and real dtypes."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Dict):
            keys = {each.value for each in node.keys if isinstance(each, ast.Constant)}
            if {"f", "d", "F", "D"} <= keys:  # NumPy's characters
                found |= set(SUPPORTED)
    return "complex64" in found or {"float32", "complex128"} <= found


def test_one_module_lists_the_dtypes():
    modules = [path for path in PACKAGE.rglob("*.py") if STAND_IN not in path.parents]
    lists = [path.relative_to(PACKAGE).as_posix() for path in modules if listing(path)]
    assert lists == ["dtypes.py"]


def test_each_name_has_a_row():
    assert tuple(ELEMENT_TYPES) == SUPPORTED == get_args(DTypeName) == DTYPES
    assert set(get_args(StoredDTypeName)) == {*SUPPORTED, *CONVERTED}
    assert [row.letter for row in ELEMENT_TYPES.values()] == list("sdcz")
    assert listed("or") == "float32, float64, complex64 or complex128"


@pytest.mark.parametrize("name", DTYPES)
def test_rows_agree_with_numpy_and_lapack(name):
    row, dtype = ELEMENT_TYPES[name], np.dtype(name)
    reals = 2 if dtype.kind == "c" else 1
    assert row.char == dtype.char
    assert row.real_bytes * reals == dtype.itemsize
    assert row.flops == (8 if reals == 2 else 2)
    assert LETTERS[dtype.char] == LETTERS[dtype.newbyteorder().char] == row.letter
    if row.half is not None:
        assert np.dtype(row.half).itemsize * 2 == dtype.itemsize
    square = np.full((1, 1), 4, dtype, order="F")
    assert potrf(square) == 0
    assert square == 2
