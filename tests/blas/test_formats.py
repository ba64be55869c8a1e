"""Products from and into every format, through the public calls."""

import h5py
import numpy as np
import pytest
import zarr

import hdgemm
from tests.reference import assert_close_in_eps

TILED = hdgemm.Options(devices="host", tile=(7, 6, 5), host_memory="64MB")


@pytest.fixture
def operands():
    rng = np.random.default_rng(0)
    return rng.standard_normal((20, 13)), rng.standard_normal((13, 17))


@pytest.mark.parametrize("kind", ["hdf5", "zarr", "raw"])
def test_file_to_file_in_other_formats(tmp_path, operands, kind):
    a, b = operands
    names = {
        "hdf5": ("x.h5::/in/A", "x.h5::/in/B", "y.h5::/out/C"),
        "zarr": ("x.zarr::A", "x.zarr::B", "x.zarr::C"),
        "raw": ("A.bin::20x13:float64", "B.bin::13x17:float64", "C.bin::20x17:float64"),
    }[kind]
    first, second, out = (f"{tmp_path}/{name}" for name in names)
    if kind == "hdf5":
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file.create_dataset("in/A", data=a, chunks=(4, 4), compression="gzip")
            file.create_dataset("in/B", data=b)
    elif kind == "zarr":
        group = zarr.open_group(tmp_path / "x.zarr", mode="w")
        group.create_array("A", data=a, chunks=(5, 5))
        group.create_array("B", data=b, chunks=(4, 9), compressors=None)
    else:
        a.tofile(tmp_path / "A.bin")
        b.tofile(tmp_path / "B.bin")
    returned = hdgemm.matmul(first, second, out=out, options=TILED)
    np.testing.assert_array_equal(np.asarray(returned), np.asarray(hdgemm.open(out)))
    if kind == "hdf5":
        with h5py.File(tmp_path / "y.h5") as file:
            c = file["out/C"][:]
    elif kind == "zarr":
        c = zarr.open_array(tmp_path / "x.zarr", path="C", mode="r")[:]
    else:
        c = np.fromfile(tmp_path / "C.bin").reshape(20, 17)
    assert_close_in_eps(c, a, b)
    assert hdgemm.verify(first, second, out).passed


def test_open_datasets_and_arrays_are_operands_and_out(tmp_path, operands):
    a, b = operands
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("A", data=a, chunks=(6, 6))
        store = zarr.create_array(tmp_path / "c.zarr", shape=(20, 17), dtype="f8", chunks=(8, 8))
        hdgemm.matmul(dataset, b, out=store, options=TILED)
        assert_close_in_eps(store[:], a, b)


def test_out_that_names_an_operand_of_a_store_is_refused(tmp_path):
    square = np.eye(4)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("A", data=square)
    name = f"{tmp_path}/x.h5::A"
    with pytest.raises(hdgemm.InputError, match="another name"):
        hdgemm.matmul(name, square, out=name, options=TILED)
    with pytest.raises(hdgemm.InputError, match="another file"):
        hdgemm.matmul(name, square, out=f"{tmp_path}/x.h5::C", options=TILED)
