"""Parquet and Arrow IPC files as tall matrices: groups of rows, and files that are refused."""

import contextlib
import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

import hdgemm
from hdgemm.errors import DoesNotFitError, HdgemmError, InputError, InputTypeError
from tests.matrices.test_read_only_formats import TILED, folder, multiplies, numbers

__all__ = ["folder"]  # the fixture


@pytest.fixture
def arrow():
    return pytest.importorskip("pyarrow")


def write(arrow, name, table, rows):
    """Write a table by groups of rows in the format of a suffix."""
    if name.endswith("parquet"):
        import pyarrow.parquet as pq

        pq.write_table(table, name, row_group_size=rows)
        return
    with arrow.OSFile(name, "wb") as sink, arrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


def table_of(arrow, x):
    return arrow.table({f"c{i}": x[:, i] for i in range(x.shape[1])})


@pytest.mark.parametrize("name", ["A.parquet", "A.arrow", "A.feather", "A"])
@pytest.mark.parametrize("rows", [1, 16, 1000])
def test_tables_are_tall_matrices(arrow, name, rows):
    x = numbers(70, 6)
    write(arrow, "A.parquet" if name == "A" else name, table_of(arrow, x), rows)
    if name == "A":
        Path("A.parquet").rename("A")
    multiplies(name, x)
    found = hdgemm.linalg.lstsq(name, np.ones(70))[0]
    np.testing.assert_allclose(found, np.linalg.lstsq(x, np.ones(70))[0], atol=1e-12)


@pytest.mark.parametrize("name", ["A.parquet", "A.arrow"])
def test_columns_of_several_types(arrow, name):
    columns = {"a": np.arange(9, dtype=np.int8), "b": np.ones(9, np.float32), "c": np.arange(9) > 3}
    write(arrow, name, arrow.table(columns), 4)
    with hdgemm.open(name) as m:
        assert m.dtype == np.float32
        np.testing.assert_array_equal(m.read(), np.stack(list(columns.values()), axis=1))
    whole = arrow.table({"a": columns["a"], "b": np.arange(9)})
    write(arrow, name, whole, 4)
    assert hdgemm.matmul(name, np.ones((2, 1), np.int8)).dtype == np.int64


@pytest.mark.parametrize("name", ["A.parquet", "A.arrow"])
def test_hostile_tables(arrow, name):
    ones = np.ones(5)
    for column, words in (
        (["x"] * 5, "'b' of string"), ([[1.0]] * 5, "'b' of list"), ([None] * 5, "'b' of null"),
        (arrow.array(["x"] * 5).dictionary_encode(), "'b' of dictionary"),
        (np.arange(5).astype("datetime64[s]"), "'b' of timestamp"),
        (np.arange(5, dtype=np.uint64), "uint64"),
        ([{"x": 1.0}] * 5, "'b' of struct"), ([[[1.0]]] * 5, "'b' of list"),
        (arrow.array([[1.0, 2.0]] * 5, arrow.list_(arrow.float64(), 2)), "'b' of fixed_size_list"),
        (arrow.array([Decimal(1)] * 5), "'b' of decimal"),
    ):  # fmt: skip
        write(arrow, name, arrow.table({"a": ones, "b": column}), 2)
        with pytest.raises(InputTypeError, match=words):
            hdgemm.open(name)
    write(arrow, name, arrow.table({"a": ones, "b": [1.0, 2.0, 3.0, None, 5.0]}), 2)
    with pytest.raises(HdgemmError, match="1 nulls in column 'b', in group 1"):
        hdgemm.matmul(name, np.ones((2, 2)), options=TILED)
    write(arrow, name, table_of(arrow, numbers(70, 6)), 8)
    with open(name, "rb") as file:  # noqa: PTH123
        whole = file.read()
    for content in (whole[:-9], whole[: len(whole) // 2], b"PAR1", b"", b"ARROW1\0\0" + bytes(99)):
        with open(name, "wb") as file:  # noqa: PTH123
            file.write(content)
        with pytest.raises(InputError, match="cannot open"):
            hdgemm.open(name)
    damaged = bytearray(whole)
    damaged[200:600] = bytes(400)
    with open(name, "wb") as file:  # noqa: PTH123
        file.write(damaged)
    # Damage of the elements alone cannot be seen in a file without checksums.
    with contextlib.suppress(HdgemmError):
        hdgemm.matmul(name, np.ones((6, 2)), options=TILED)
    write(arrow, name, table_of(arrow, numbers(7000, 6)), 7000)
    with hdgemm.set_options(host_memory="400kB"), pytest.raises(DoesNotFitError) as caught:
        hdgemm.open(name)
    assert "groups of 7000 rows, 336 kB each" in str(caught.value)


@pytest.mark.parametrize("name", ["A.parquet", "A.arrow"])
@pytest.mark.parametrize("kind", ["bool", "int8", "float64"])
def test_nulls_are_refused_where_they_are_read(arrow, name, kind):
    column = arrow.array([1, 0, 1, 1, None, 1], "int8").cast(kind)
    write(arrow, name, arrow.table({"a": np.ones(6), "b": column}), 3)
    with hdgemm.open(name) as m:
        np.testing.assert_array_equal(m[:3].read(), [[1, 1], [1, 0], [1, 1]])
        for call in (m.read, lambda: m @ np.ones(2), lambda: np.linalg.norm(m), lambda: m[5]):
            with pytest.raises(HdgemmError, match="1 nulls in column 'b', in group 1"):
                call()


def test_elements_in_dictionary_pages(arrow):
    import pyarrow.parquet as pq

    x = np.repeat(numbers(3, 4), 50, axis=0)
    pq.write_table(table_of(arrow, x), "A.parquet", use_dictionary=True, row_group_size=40)
    described = pq.ParquetFile("A.parquet").metadata.row_group(0).column(0)
    assert described.has_dictionary_page
    with hdgemm.open("A.parquet") as m:
        np.testing.assert_array_equal(m.read(), x)


def test_columns_that_are_dictionaries_of_numbers(arrow):
    column = arrow.array(np.arange(5.0)).dictionary_encode()
    for name in ("A.parquet", "A.arrow"):
        write(arrow, name, arrow.table({"a": np.ones(5), "b": column}), 2)
    with hdgemm.open("A.parquet") as m:  # the file has numbers
        np.testing.assert_array_equal(m[:, 1], np.arange(5))
    with pytest.raises(InputTypeError, match="'b' of dictionary"):
        hdgemm.open("A.arrow")


def test_opening_arrow_files_reads_one_column(arrow):
    def bytes_read():
        found = re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text(encoding="ascii"))
        return int(found[1])

    write(arrow, "A.arrow", table_of(arrow, numbers(20_000, 50)), 4000)
    before = bytes_read()
    with hdgemm.open("A.arrow") as m:
        assert m.shape == (20_000, 50)
    assert bytes_read() - before < Path("A.arrow").stat().st_size / 20


def test_footers_that_do_not_fit_are_refused(arrow):
    x = numbers(3000, 2)
    write(arrow, "A.parquet", table_of(arrow, x), 1)
    with hdgemm.set_options(host_memory="5MB"), pytest.raises(DoesNotFitError) as caught:
        hdgemm.open("A.parquet")
    assert "write it with larger groups" in str(caught.value)
    assert caught.value.requested > caught.value.available == 2_500_000
    # The length of a damaged footer says nothing.
    with open("A.parquet", "r+b") as file:  # noqa: PTH123
        file.seek(-8, os.SEEK_END)
        file.write(b"\xff\xff\xff\x7f")
    with pytest.raises(InputError, match="cannot open"):
        hdgemm.open("A.parquet")


_OPENED = """
import re, sys
from pathlib import Path
import pyarrow.parquet
import hdgemm
def peak():
    # Of this program alone: ru_maxrss begins with the peak of the process that forked it.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
def opened(name, memory):
    with hdgemm.set_options(host_memory=memory):
        hdgemm.open(name).close()
opened("small.parquet", "40MB")
before = peak()
try:
    opened("large.parquet", int(sys.argv[1]))
except hdgemm.DoesNotFitError as error:
    print(error)
print(peak() - before)
"""


@pytest.mark.campaign
def test_a_million_row_groups(arrow):
    write(arrow, "small.parquet", table_of(arrow, numbers(10, 1)), 1)
    write(arrow, "large.parquet", table_of(arrow, numbers(10**6, 1)), 1)
    for memory, refused in ((200_000_000, True), (6_000_000_000, False)):
        command = [sys.executable, "-c", _OPENED, str(memory)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        *said, added = done.stdout.splitlines()
        assert ["larger groups" in each for each in said] == [True] * refused
        assert int(added) < (4 << 20 if refused else memory // 2)


def test_many_row_groups_and_none(arrow):
    x = numbers(3000, 2)
    write(arrow, "A.parquet", table_of(arrow, x), 1)
    np.testing.assert_allclose(hdgemm.matmul("A.parquet", np.eye(2)), x)
    write(arrow, "A.parquet", table_of(arrow, x[:0]), 1)
    assert hdgemm.open("A.parquet").shape == (0, 2)
