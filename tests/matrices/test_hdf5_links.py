"""HDF5 datasets whose elements are in other files than the one that names them."""

import os

import h5py
import numpy as np
import pytest

import hdgemm
from hdgemm.errors import InputError, MatrixIOError
from hdgemm.matrices.operands import open_operand
from hdgemm.product.aliasing import overlaps

TILED = hdgemm.Options(host_memory="64MB", devices="host", tile=(16, 16, 16))
CHUNKS = {"plain": {}, "chunks": {"chunks": (7, 9)}, "gzip": {"chunks": (7, 9), "compression": 4}}


def numbers(shape=(40, 30), seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with data.h5 below it, where other.h5 has wrong numbers at the same offsets."""
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(where, x):
    """Multiply and verify, before and after a change of the working directory."""
    operand = open_operand(where)
    matrix = hdgemm.open(where)
    os.chdir("/")
    got = np.empty(x.shape)
    operand.matrix.read(0, 0, got)
    np.testing.assert_array_equal(got, x)
    np.testing.assert_array_equal(np.asarray(matrix), x)
    product = hdgemm.matmul(matrix, x.T, options=TILED)
    np.testing.assert_allclose(product, x @ x.T, atol=1e-12)
    assert hdgemm.verify(matrix, x.T, product).passed
    operand.matrix.close()
    matrix.close()


@pytest.mark.parametrize("layout", CHUNKS)
@pytest.mark.parametrize("userblock", [0, 1024])
def test_external_and_soft_links(folder, layout, userblock):
    x = numbers()
    with h5py.File("below/data.h5", "w", userblock_size=userblock) as file:
        file.create_dataset("B", data=x, **CHUNKS[layout])
        file["soft"] = h5py.SoftLink("/B")
    with h5py.File("links.h5", "w") as file:
        file.create_dataset("B", data=numbers(seed=1), **CHUNKS[layout])
        file["ext"] = h5py.ExternalLink("below/data.h5", "/soft")
        file["chain"] = h5py.SoftLink("/ext")
        file["hard"] = file["B"]
    for name in ("ext", "chain"):
        os.chdir(folder)
        check(f"links.h5::/{name}", x)
    os.chdir(folder)
    check("links.h5::/hard", numbers(seed=1))
    with h5py.File(folder / "links.h5") as file:
        os.chdir(folder)
        check(file["ext"], x)
    os.chdir(folder)
    true, link = open_operand("below/data.h5::B").matrix, open_operand("links.h5::ext").matrix
    assert overlaps(true, link)
    assert not overlaps(link, open_operand("links.h5::B").matrix)
    assert link.home == folder / "below/data.h5"


def test_a_linked_dataset_is_written_where_it_is(folder):
    x = numbers()
    for layout in CHUNKS.values():
        with h5py.File("below/data.h5", "w") as file:
            file.create_dataset("B", data=np.zeros((40, 30)), **layout)
        with h5py.File("links.h5", "w") as file:
            file["ext"] = h5py.ExternalLink("below/data.h5", "/B")
        with hdgemm.open("links.h5::ext", "r+") as matrix:
            matrix[:] = x
            assert overlaps(matrix.operand.matrix, open_operand("below/data.h5::B").matrix)
        with h5py.File("below/data.h5") as file:
            np.testing.assert_array_equal(file["B"][:], x)


def test_virtual_datasets(folder):
    x = numbers()
    layout = h5py.VirtualLayout((40, 30), "f8")
    for part, place in enumerate(("below/top.h5", "bottom.h5")):
        with h5py.File(place, "w") as file:
            file["part"] = x[20 * part : 20 * part + 20]
        layout[20 * part : 20 * part + 20] = h5py.VirtualSource(place, "part", (20, 30))
    with h5py.File("whole.h5", "w") as file:
        file.create_virtual_dataset("A", layout)
    check("whole.h5::A", x)
    os.chdir(folder)
    (folder / "bottom.h5").rename("elsewhere.h5")
    with pytest.raises(InputError, match=r"bottom\.h5, which is missing"):
        hdgemm.open("whole.h5::A")


def test_virtual_datasets_whose_files_depend_on_the_working_directory_are_refused(folder):
    layout = h5py.VirtualLayout((40, 30), "f8")
    layout[:] = h5py.VirtualSource("part.h5", "part", (40, 30))
    with h5py.File("below/whole.h5", "w") as file:
        file.create_virtual_dataset("A", layout)
    with h5py.File("part.h5", "w") as file:
        file["part"] = numbers()
    with pytest.raises(InputError, match=r"below/part\.h5, which is missing"):
        hdgemm.open("below/whole.h5::A")


@pytest.mark.parametrize("count", [1, 2])
def test_external_storage(folder, count):
    x = numbers()
    half = x.nbytes // count
    files = [(f"below/{number}.bin", 8 * number, half) for number in range(count)]
    with h5py.File("x.h5", "w") as file:
        file.create_dataset("A", x.shape, "f8", external=files)
        file["A"][:] = x
    if count == 1:
        check("x.h5::A", x)
    os.chdir(folder)
    with h5py.File("x.h5") as file:
        np.testing.assert_allclose(hdgemm.matmul(file["A"], x.T), x @ x.T, atol=1e-12)
        matrix = open_operand(file["A"]).matrix
        got = np.empty(x.shape)
        matrix.read(0, 0, got)
        np.testing.assert_array_equal(got, x)
    (folder / "below/0.bin").unlink()
    with pytest.raises(InputError, match=r"0\.bin, which is missing"):
        hdgemm.matmul("x.h5::A", x.T)


@pytest.fixture(params=["virtual", "external"])
def scattered(request, folder):
    """A dataset with elements in two other files; the location of one, and its first element."""
    x = numbers((40, 40))
    if request.param == "external":
        with h5py.File("x.h5", "w") as file:
            files = [("0.bin", 0, x.nbytes // 2), ("1.bin", 0, x.nbytes // 2)]
            file.create_dataset("A", x.shape, "f8", external=files)[:] = x
        return "x.h5::A", "1.bin", 0
    layout = h5py.VirtualLayout((40, 40), "f8")
    for part in range(2):
        with h5py.File(f"{part}.h5", "w") as file:
            file["part"] = x[20 * part : 20 * part + 20]
            offset = file["part"].id.get_offset()
        layout[20 * part : 20 * part + 20] = h5py.VirtualSource(f"{part}.h5", "part", (20, 40))
    with h5py.File("x.h5", "w") as file:
        file.create_virtual_dataset("A", layout)
    return "x.h5::A", "1.h5", offset


def test_a_result_over_one_of_several_files_is_refused(scattered):
    location, place, offset = scattered
    out = np.memmap(place, "f8", "r+", offset, (20, 40))
    for old in ({}, {"c": np.ones((20, 40)), "beta": 1.0}):
        with pytest.raises(InputError, match="out overlaps b"):
            hdgemm.multiply(np.ones((20, 40)), location, out=out, options=TILED, **old)


def test_a_change_of_one_of_several_files_is_an_error(scattered, folder):
    location, place, offset = scattered

    def change(event):
        if event.stage == "mult1" and event.number == 0:
            with (folder / place).open("r+b") as file:
                file.seek(offset)
                file.write(b"\1" * 8)

    with pytest.raises(MatrixIOError, match=r"B .*was modified"):
        hdgemm.multiply(
            numbers((40, 40)), location, out=folder / "c.npy", options=TILED, observer=change
        )


def test_files_of_other_drivers(folder):
    x = numbers()
    with h5py.File("memory.h5", "w", driver="core", backing_store=False) as file:
        file["A"] = x
        np.testing.assert_allclose(
            hdgemm.matmul(file["A"], x.T, options=TILED), x @ x.T, atol=1e-12
        )


@pytest.fixture
def fifo(folder):
    """Links and virtual datasets that lead to a FIFO, which HDF5 would wait for."""
    os.mkfifo("fifo.h5")

    def virtual(file, name, source):
        layout = h5py.VirtualLayout((8, 8), "f8")
        layout[:] = h5py.VirtualSource(*source, (8, 8))
        file.create_virtual_dataset(name, layout)

    with h5py.File("one.h5", "w") as file:
        file["x"] = np.ones((8, 8))
        file["ext"] = h5py.ExternalLink("fifo.h5", "/x")
        file.create_group("g")["ext"] = h5py.ExternalLink("fifo.h5", "/x")
        file["soft"], file["g/up"] = h5py.SoftLink("/ext"), h5py.SoftLink("ext")
        virtual(file, "virtual", ("fifo.h5", "x"))
        virtual(file, "own", (".", "ext"))
    with h5py.File("two.h5", "w") as file:
        file["ext"] = h5py.ExternalLink("one.h5", "/ext")
        file["g"] = h5py.ExternalLink("one.h5", "/g")
        virtual(file, "linked", ("one.h5", "ext"))
        virtual(file, "nested", ("one.h5", "virtual"))
        file["round"] = h5py.SoftLink("/round")
        file["far"] = h5py.ExternalLink("two.h5", "/far")
    return folder


@pytest.mark.parametrize("where", [
    "one.h5::ext", "one.h5::soft", "one.h5::g/ext", "one.h5::g/up", "one.h5::virtual",
    "one.h5::own", "two.h5::ext", "two.h5::g/ext", "two.h5::linked", "two.h5::nested",
])  # fmt: skip
def test_a_fifo_behind_a_link_is_refused(fifo, where):
    with pytest.raises(InputError, match="is a FIFO"):
        hdgemm.open(where)
    with pytest.raises(InputError, match="is a FIFO"):
        hdgemm.matmul(np.eye(8), np.eye(8), out=where)
    with pytest.raises(InputError, match="is a FIFO"):
        hdgemm.matmul(np.eye(8), np.eye(8), out=f"{where}/below")


def test_the_names_in_a_file_are_told_without_opening_links(fifo):
    with pytest.raises(InputError, match=r"no dataset 'y'; at its top level are: own, virtual, x$"):
        hdgemm.open("one.h5::y")


@pytest.mark.parametrize("where", ["two.h5::round", "two.h5::far"])
def test_links_in_a_circle_end(fifo, where):
    with pytest.raises(InputError, match=f"{where.split(':')[-1]}"):
        hdgemm.open(where)
