"""Overlaps through mappings of files, however they were made."""

import ctypes
import mmap

import numpy as np
import pytest

import hdgemm
from hdgemm.errors import InputError
from hdgemm.matrices.operands import open_operand
from hdgemm.product.aliasing import arrays_overlap, overlaps, same_elements

N = 64
TILED = hdgemm.Options(host_memory="64MB", devices="host", tile=(32, 32, 32))


@pytest.fixture
def path(tmp_path):
    np.random.default_rng(0).standard_normal((N, N)).tofile(tmp_path / "x.bin")
    return tmp_path / "x.bin"


def from_mmap(path):
    with path.open("r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0)).reshape(N, N)


def from_ctypes(path):
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    return np.frombuffer((ctypes.c_char * len(memory)).from_buffer(memory)).reshape(N, N)


def from_memoryview(path):
    with path.open("r+b") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0)).cast("B")
    return np.asarray(view).view("f8").reshape(N, N)


def from_memmap(path):
    return np.asarray(np.memmap(path, "f8", "r+", shape=(N, N)))


MAPPINGS = [from_mmap, from_ctypes, from_memoryview, from_memmap]


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("link", [False, True])
def test_an_output_that_maps_an_inputs_file(path, mapping, link):
    named = path
    if link:
        named = path.with_name("link.bin")
        named.hardlink_to(path)
    out = mapping(named)
    for a in (f"{path}::{N}x{N}:f8", np.memmap(path, "f8", "r", shape=(N, N)), from_mmap(path)):
        before = path.read_bytes()
        with pytest.raises(InputError, match="overlaps a"):
            hdgemm.matmul(a, np.eye(N), out=out, options=TILED)
        with pytest.raises(InputError, match="overlaps"):
            hdgemm.matmul(a, np.eye(N), out=out)
        assert path.read_bytes() == before


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_disjoint_parts_of_a_file(path, mapping):
    x = mapping(path)
    file = open_operand(f"{path}::{N}x{N}:f8").matrix
    for top in (0, N // 2):
        part = open_operand(x[top : top + N // 2]).matrix
        assert not overlaps(part, file.part(N // 2 - top, 0, (N // 2, N)))
        assert overlaps(part, file.part(top, 3, (1, 1)))
    assert not arrays_overlap(mapping(path)[:, :5], x[:, 5:])
    assert arrays_overlap(mapping(path)[:, :6], x[:, 5:])


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_the_old_c_may_be_another_mapping_of_the_same_elements(path, mapping):
    x = mapping(path)
    before = x.copy()
    a = np.random.default_rng(1).standard_normal((N, N))
    assert same_elements(open_operand(x), open_operand(from_mmap(path)))
    hdgemm.dgemm(1.0, a, a, beta=1.0, c=from_mmap(path), out=x, options=TILED)
    np.testing.assert_allclose(x, a @ a + before, atol=1e-12)


def test_memory_that_is_no_file():
    shared = np.frombuffer(mmap.mmap(-1, 8 * N)).reshape(8, 8)
    other = np.frombuffer(mmap.mmap(-1, 8 * N)).reshape(8, 8)
    assert not arrays_overlap(shared, other)
    assert arrays_overlap(shared[:4], shared[3:])
    assert not arrays_overlap(np.frombuffer(bytes(64)), np.frombuffer(bytes(64)))


def test_chunks_behind_a_link_to_a_folder(tmp_path):
    """The store beside it has the same chunks, through a link, and a link back to itself."""
    zarr = pytest.importorskip("zarr")
    x = np.random.default_rng(0).standard_normal((N, N))
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(32, 32), compressors=None)
    linked = tmp_path / "linked.zarr"
    linked.mkdir()
    (linked / "zarr.json").write_bytes((tmp_path / "x.zarr" / "zarr.json").read_bytes())
    (linked / "c").symlink_to(tmp_path / "x.zarr" / "c")
    (linked / "back").symlink_to(linked)
    with hdgemm.open(tmp_path / "x.zarr", "r+") as out, pytest.raises(InputError, match="overlaps"):
        hdgemm.multiply(linked, np.eye(N), out=out, options=TILED)
    np.testing.assert_array_equal(hdgemm.open(tmp_path / "x.zarr"), x)
