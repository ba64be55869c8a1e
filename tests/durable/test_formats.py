"""Runs into raw, HDF5 and Zarr files that are cut off, killed or lose power, and go on."""

import random
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

import hdgemm
from hdgemm.blas.products import multiply
from hdgemm.durable.audit import audit
from hdgemm.errors import InputError
from hdgemm.matrices._chunkfiles import ChunkFiles
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.options import Options
from tests.durable.durable_case import TILE, Killer, Stop, killed
from tests.durable.power_loss import PowerLoss

OUTS = {
    "raw": "C.bin::300x280:float64",
    "raw-columns": "C.bin::300x280:<f8:F:100",
    "hdf5": "C.h5::/group/C",
    "zarr": "C.zarr",
    "zarr-item": "C.zarr::group/C",
}


class Case:
    """C := 1.5·A·B into one format, in a folder with A, B and nothing else."""

    def __init__(self, folder, kind):
        self.folder, self.kind = Path(folder), kind
        rng = np.random.default_rng(7)
        self.a, self.b = rng.standard_normal((300, 150)), rng.standard_normal((150, 280))
        np.save(self.folder / "A.npy", self.a)
        np.save(self.folder / "B.npy", self.b)
        self.options = Options(tile=TILE, devices="host")
        self.run(checkpoint=False)
        self.expected = np.array(self.c())
        self.reset()

    @property
    def inputs(self):
        return self.folder / "A.npy", self.folder / "B.npy"

    @property
    def out(self):
        return f"{self.folder}/{OUTS[self.kind]}"

    def run(self, **arguments):
        arguments = {"checkpoint": True, "options": self.options} | arguments
        return multiply(*self.inputs, alpha=1.5, out=self.out, **arguments)

    def run_until(self, count, **arguments):
        seen = []

        def observe(event):
            seen.append(event.stage == "store2")
            if sum(seen) >= count:
                raise Stop

        with pytest.raises(Stop):
            self.run(observer=observe, **arguments)

    def c(self):
        if self.kind == "hdf5":
            with h5py.File(self.folder / "C.h5") as file:
                return file["group/C"][:]
        if "zarr" in self.kind:
            item = "group/C" if self.kind == "zarr-item" else ""
            return zarr.open_array(self.folder / "C.zarr", path=item, mode="r")[:]
        skip, order = (100, "F") if self.kind == "raw-columns" else (0, "C")
        content = (self.folder / "C.bin").read_bytes()[skip:]
        return np.frombuffer(content).reshape((300, 280), order=order)

    def check(self):
        # To the bit: what was stored before the cut and what was computed after it.
        np.testing.assert_array_equal(self.c(), self.expected)
        names = [path.name for path in self.folder.rglob("*")]
        assert not [name for name in names if name.endswith((".part", ".old", ".redo"))]

    def reset(self):
        for path in self.folder.iterdir():
            if path.name not in ("A.npy", "B.npy"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture(params=OUTS)
def case(request, tmp_path):
    return Case(tmp_path, request.param)


@pytest.mark.parametrize("count", [1, 48])
def test_a_run_cut_off_goes_on(case, count):
    case.run_until(count)
    report = case.run()
    case.check()
    assert report.resumption.kept >= count
    assert report.resumption.damaged == 0
    assert case.run().resumption.finished
    assert audit(case.out).passed
    assert hdgemm.verify(1.5 * case.a, case.b, case.out).passed


@pytest.mark.parametrize("out", ["C.npy", "C.bin::60x50:float64:F:64", "C.h5::/C"])
def test_a_run_into_an_existing_file_is_audited(tmp_path, out):
    where, a = tmp_path / out, np.random.default_rng(0).standard_normal((60, 50))
    hdgemm.create(where, a.shape, a.dtype).close()
    with hdgemm.open(where, mode="r+") as c:
        hdgemm.matmul(a, np.eye(50), out=c, checkpoint=True)
    assert audit(where).passed
    with hdgemm.open(where, mode="r+") as c:
        c[7:8, 3:4] = np.full((1, 1), 9.0)
    assert len(audit(where).damaged) == 1


def test_nothing_is_published_before_it_is_whole(case):
    case.run_until(25)
    with pytest.raises((OSError, InputError, KeyError)):
        case.c()
    with pytest.raises(InputError, match=r"alpha was 1\.5, is 2\.0"):
        multiply(*case.inputs, alpha=2.0, out=case.out, options=case.options, checkpoint=True)
    assert case.run(restart=True).resumption.kept == 0
    case.check()


def test_bits_that_flip_are_found_and_computed_again(case):
    case.run_until(40)
    if "zarr" in case.kind:
        [part] = case.folder.rglob("*.part")
        path = part / "c" / "0" / "0"
    else:
        [path] = case.folder.glob(".C.*.part")
    with path.open("r+b") as stream:
        stream.seek(8192 if case.kind == "hdf5" else 1000)
        byte = stream.read(1)
        stream.seek(-1, 1)
        stream.write(bytes([byte[0] ^ 4]))
    report = case.run()
    assert report.resumption.damaged == 1
    case.check()


def _killed_run(folder, kind, number):
    case = Case.__new__(Case)
    case.folder, case.kind = Path(folder), kind
    case.options = Options(tile=TILE, devices="host")
    case.run(observer=Killer(number))


@pytest.mark.parametrize(
    "kind", [pytest.param("raw", marks=pytest.mark.campaign), "hdf5", "zarr-item"]
)
def test_killed_at_any_moment(tmp_path, kind):
    case = Case(tmp_path, kind)
    events = []
    case.run(observer=events.append)
    case.reset()
    killed(_killed_run, tmp_path, kind, random.Random(kind).randint(1, len(events)))
    case.run()
    case.check()


@pytest.mark.parametrize("kind", ["raw", "hdf5"])
def test_power_may_fail_at_any_write(memory_folder, kind, monkeypatch):
    case = Case(memory_folder, kind)
    power = PowerLoss(case.folder, monkeypatch)
    case.run()
    calls, rng = power.calls, random.Random(kind)
    for seed in range(3):
        case.reset()
        power.on()
        power.fails_during(case.run, rng.randint(1, calls), seed)
        case.run()
        case.check()


@pytest.mark.parametrize("kind", ["hdf5", "zarr-item"])
def test_a_replaced_matrix_is_the_old_one_until_the_new_one_is_whole(tmp_path, kind):
    case = Case(tmp_path, kind)
    case.run(checkpoint=False)
    case.run(checkpoint=False, c=case.out, beta=1.0)
    expected = case.c()
    case.run(checkpoint=False)
    old = case.c()
    case.run_until(20, c=case.out, beta=1.0)
    np.testing.assert_array_equal(case.c(), old)
    case.run(c=case.out, beta=1.0)
    np.testing.assert_array_equal(case.c(), expected)
    assert case.run(c=case.out, beta=1.0).resumption.finished


def test_compressed_inputs_are_told_apart_by_their_files(tmp_path):
    case = Case(tmp_path, "raw")
    with h5py.File(tmp_path / "A.h5", "w") as file:
        file.create_dataset("A", data=case.a, chunks=(64, 64), compression="gzip")
    b = zarr.create_array(tmp_path / "B.zarr", shape=case.b.shape, chunks=(50, 50), dtype="f8")
    b[:] = case.b
    names = f"{tmp_path}/A.h5::A", f"{tmp_path}/B.zarr"
    arguments = {"alpha": 1.5, "out": case.out, "options": case.options, "checkpoint": True}

    def observe(event):
        if event.stage == "store2" and event.number == 20:
            raise Stop

    with pytest.raises(Stop):
        multiply(*names, observer=observe, **arguments)
    b[3, 4] = 5.0
    with pytest.raises(InputError, match="B has changed"):
        multiply(*names, **arguments)


@pytest.mark.parametrize("kept", ["dataset", "attribute", "group", "link"])
def test_a_file_with_more_than_the_dataset_is_not_replaced(tmp_path, kept):
    case = Case(tmp_path, "hdf5")
    case.run(checkpoint=False)
    with h5py.File(tmp_path / "C.h5", "a") as file:
        if kept == "dataset":
            file["group/other"] = np.eye(2)
        elif kept == "attribute":
            file["group"].attrs["units"] = "m"
        elif kept == "group":
            file.create_group("other")
        else:
            file.move("group/C", "elsewhere")
            file["group/C"] = h5py.SoftLink("/elsewhere")
    with pytest.raises(InputError, match=r"C\.h5 exists and holds more than /group/C"):
        case.run()
    assert not list(tmp_path.glob(".C.*.part"))


def test_what_cannot_be_resumed_is_refused(tmp_path):
    case = Case(tmp_path, "hdf5")
    with h5py.File(tmp_path / "C.h5", "w") as file:
        file.create_dataset("other", data=np.eye(2))
        out = file.create_dataset("C", shape=(300, 280), chunks=(50, 50), dtype="f8")
        with pytest.raises(InputError, match="give C a file of its own"):
            case.run()
        with pytest.raises(InputError, match="bytes keep their places"):
            multiply(*case.inputs, out=out, checkpoint=True)
    array = zarr.create_array(tmp_path / "D.zarr", shape=(300, 280), dtype="f8")
    with pytest.raises(InputError, match="bytes keep their places"):
        multiply(*case.inputs, out=array, checkpoint=True)
    with pytest.raises(InputError, match="local disk"):
        multiply(*case.inputs, out="s3://bucket/C.zarr", checkpoint=True)


def test_drafts_are_written_where_they_lie(tmp_path):
    for kind, expected in (("hdf5", FileMatrix), ("zarr", ChunkFiles)):
        case = Case(tmp_path, kind)
        case.run(checkpoint=False)
        assert isinstance(hdgemm.matrices.operands.open_operand(case.out).matrix, expected)
