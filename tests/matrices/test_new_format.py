"""A new file format is one class and one registration; no other room compares a format by name."""

from __future__ import annotations

import ast
import struct
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hdgemm
from hdgemm.cli.app import app
from hdgemm.durable.audit import audit
from hdgemm.errors import InputError
from hdgemm.matrices import location
from hdgemm.matrices.draft import FileDraft, real_path, reserve
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import BlockFile
from hdgemm.matrices.location import Format, Location, format_named, parse_location, register

PACKAGE = Path(hdgemm.__file__).parent
HEADER = 64


class Toy(Format):
    """A magic, rows, columns and NumPy's name of the dtype, then the elements row by row."""

    name = "toy"
    suffixes = frozenset({".toy"})
    magic = b"TOYTOY\0\0"

    def open(self, place, *, writable=False):
        with place.path.open("rb") as stream:
            magic, rows, cols, dtype = struct.unpack("<8sQQ8s", stream.read(32))
        if magic != self.magic:
            raise InputError(f"{place} is no toy")
        file = BlockFile(place.path, writable=writable)
        return FileMatrix(file, (rows, cols), np.dtype(dtype.rstrip(b"\0").decode()), HEADER), False

    def create(self, place, spec):
        dtype, (rows, cols) = np.dtype(spec.dtype), spec.shape
        header = struct.pack("<8sQQ8s", self.magic, rows, cols, dtype.str.encode())
        path = real_path(place.path)
        nbytes = HEADER + rows * cols * dtype.itemsize
        file = reserve(path, header, nbytes, spec.part, sparse=spec.sparse)
        return FileDraft(path, file.path, FileMatrix(file, (rows, cols), dtype, HEADER))


@pytest.fixture(autouse=True)
def toy(monkeypatch, tmp_path):
    """Register the format for one test."""
    monkeypatch.setattr(location, "_FORMATS", location._Register(location._FORMATS))
    monkeypatch.chdir(tmp_path)
    register(Toy())


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def store(name, x):
    with hdgemm.create(name, x.shape, x.dtype) as made:
        made[:, :] = x
    return name


def load(name):
    with hdgemm.open(name) as stored:
        return np.array(stored)


def test_it_is_created_and_found_by_suffix_and_by_content():
    x = numbers(5, 7)
    store("A.toy", x)
    Path("A.toy").rename("A")
    assert parse_location("B.toy").kind.name == parse_location("A").kind.name == "toy"
    assert np.array_equal(load("A"), x)


def test_it_is_multiplied_over_and_over():
    a, b = numbers(60, 40), numbers(40, 50, seed=1)
    options = hdgemm.Options(host_memory="2MB")
    for _ in range(2):
        c = hdgemm.matmul(store("A.toy", a), store("B.toy", b), out="C.toy", options=options)
        assert np.allclose(np.asarray(c), a @ b, atol=1e-12)
    hdgemm.matmul("A.toy", "B.toy", out="D.npy")
    assert np.allclose(np.load("D.npy"), a @ b, atol=1e-12)


def test_a_durable_product_is_audited():
    a = numbers(30, 30)
    hdgemm.matmul(store("A.toy", a), "A.toy", out="C.toy", checkpoint=True)
    assert np.allclose(load("C.toy"), a @ a, atol=1e-12)
    assert audit("C.toy").passed


def test_it_is_factored_with_its_description_beside_it():
    a, b = numbers(40, 40), numbers(40, 3, seed=1)
    factors = hdgemm.linalg.lu_factor(store("A.toy", a), out="LU.toy")
    plan = hdgemm.linalg.plan("lu", "A.toy", out="LU.toy")
    assert plan is not None
    for each in (factors, hdgemm.linalg.open("LU.toy")):
        assert np.allclose(a @ hdgemm.linalg.lu_solve(each, b), b, atol=1e-10)
    x = hdgemm.linalg.solve("A.toy", store("B.toy", b), out="X.toy", checkpoint=True)
    assert np.allclose(a @ np.asarray(x), b, atol=1e-10)
    (r,) = hdgemm.linalg.qr("A.toy", mode="r", out="R.toy")
    upper = np.triu(np.asarray(r))
    assert np.allclose(upper.T @ upper, a.T @ a, atol=1e-10)


def test_it_is_overwritten_in_place():
    a = numbers(40, 40)
    lu, piv = hdgemm.linalg.lu_factor(store("A.toy", a), overwrite_a=True, checkpoint=True)
    b = numbers(40)
    assert np.allclose(a @ hdgemm.linalg.lu_solve((lu, piv), b), b, atol=1e-10)


def test_the_command_line_reads_and_keeps_it():
    a = numbers(20, 20)
    store("A.toy", a)
    runner = CliRunner()
    done = runner.invoke(app, ["multiply", "A.toy", "A.toy", "--out", "C.toy"])
    assert done.exit_code == 0, done.output
    assert np.allclose(load("C.toy"), a @ a, atol=1e-12)
    again = runner.invoke(app, ["multiply", "A.toy", "A.toy", "--out", "C.toy", "--no-clobber"])
    assert again.exit_code != 0


def test_its_errors_are_those_of_a_file():
    with pytest.raises(InputError, match="what follows '::'"):
        parse_location("A.toy::item")
    with pytest.raises(InputError, match="suffix of another format"):
        hdgemm.create("A.toy::3x4:float64", (3, 4), "f8")
    with pytest.raises(InputError, match="order 'F'"):
        hdgemm.create("A.toy", (3, 4), "f8", order="F")


def test_a_name_or_suffix_is_registered_once():
    with pytest.raises(InputError, match="already"):
        register(Toy())
    with pytest.raises(InputError, match="unknown format 'tow'"):
        format_named("tow")
    with pytest.raises(InputError, match=r"known are npy, raw, hdf5, zarr, .*toy"):
        Location(Path("A"), "tow").check_suffix()


def compared(tree):
    """Return the lines on which an attribute `format` is compared with a name, or names one."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(side, ast.Attribute) and side.attr == "format" for side in sides):
                found.append(node.lineno)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = {"npy", "raw", "hdf5", "zarr"}
            values = [each.value for each in node.args if isinstance(each, ast.Constant)]
            if node.func.id in ("Location", "format_named") and names & set(values):
                found.append(node.lineno)
        if isinstance(node, ast.Match) and isinstance(node.subject, ast.Attribute):
            found += [node.lineno] * (node.subject.attr == "format")
    return found


def test_no_other_room_compares_a_format_by_name():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent.name != "matrices"
        for line in compared(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not wrong, f"ask location.kind instead: {wrong}"


@pytest.mark.parametrize(
    "line",
    ["x.format == 'npy'", "x.y.format in ('npy', 'raw')", "Location(path, 'zarr')",
     "'h5' != a.format"],
)  # fmt: skip
def test_a_comparison_would_be_seen(line):
    assert compared(ast.parse(line)) == [1]
