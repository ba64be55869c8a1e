"""Workers that see other files than the client under the same names, and clients with one C."""

import os
import shutil
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

import hdgemm
from hdgemm.cluster import cholesky, multiply, syrk
from hdgemm.cluster._marks import place_mark
from hdgemm.cluster.connection import ClusterError
from hdgemm.cluster.references import FileReference, StoreReference
from hdgemm.errors import InputError
from hdgemm.matrices.filelocks import lock_for_writing
from hdgemm.options import Options
from hdgemm.pipeline.tiles import Rect
from tests.reference import assert_close_in_eps

distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.usefixtures("many_blocks")
OPTIONS = Options(devices="host", host_memory="64MB", tile=(16, 200, 100))
N = 90


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(6)
    for name in "ABC":
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((N, N)))
    g = rng.standard_normal((N, N))
    np.save(tmp_path / "S.npy", g @ g.T + N * np.eye(N))
    (tmp_path / "other").mkdir()
    return tmp_path


def redirect(mounts):
    """Make this process see other files under the names of `mounts`; those it had at once again."""
    for kind in (FileReference, StoreReference):
        original = getattr(kind.open, "original", kind.open)

        def open_there(reference, *, writable=False, original=original):
            home, names = reference.home, {Path(a): Path(b) for a, b in mounts.items()}
            if hasattr(reference, "path"):
                reference = replace(reference, path=names.get(home, home))
            else:
                place = replace(reference.location, path=names.get(home, home))
                reference = replace(reference, location=place)
            return original(reference, writable=writable)

        open_there.original = original
        kind.open = open_there


@pytest.fixture
def seen_by_workers(client):
    """Let some workers, or all of them, see other files."""

    def change(mounts, workers=None):
        client.run(redirect, {f"{a}": f"{b}" for a, b in mounts.items()}, workers=workers)

    yield change
    change({})


def products(folder, client, **arguments):
    """Return calls with each operand of each routine, by the operand's file."""
    a, b, c, s, out = (folder / f"{name}.npy" for name in "ABCSX")
    how = {"client": client, "options": OPTIONS, "out": out} | arguments
    return {
        "A": lambda: multiply(a, b, **how),
        "B": lambda: multiply(a, b, **how),
        "C": lambda: multiply(a, b, beta=0.5, c=c, **how),
        "S": lambda: cholesky(s, True, **how),
    }


@pytest.mark.parametrize("name", ["A", "B", "C", "S"])
def test_a_worker_that_reads_another_matrix_is_refused(folder, client, seen_by_workers, name):
    file, other = folder / f"{name}.npy", folder / "other" / f"{name}.npy"
    np.save(other, np.load(file) + 1)
    seen_by_workers({file: other})
    with pytest.raises(ClusterError, match=rf"tcp://\S+: \S+{name}\.npy is another matrix") as e:
        products(folder, client)[name]()
    assert str(e.value).count("another matrix") == 2
    assert not (folder / "X.npy").exists()


def store_diagonal(path, more=0.0):
    """Store a diagonal matrix, whose samples are zero but for a few, with one more element."""
    x = np.diag(np.arange(float(N)))
    x[2, 3] = more  # no sample has row 2
    if path.suffix == ".npy":
        np.save(path, x)
    elif path.suffix == ".zarr":
        zarr = pytest.importorskip("zarr")
        zarr.create_array(store=path, data=x, chunks=(20, 20), compressors=None)
    else:
        with h5py.File(path, "w") as file:
            file.create_dataset("A", data=x, chunks=(20, 20), compression="gzip")


@pytest.mark.parametrize(("name", "item"), [("A.npy", ""), ("A.zarr", ""), ("A.h5", "::A")])
def test_a_copy_of_another_age_is_refused_where_samples_are_equal(
    folder, client, seen_by_workers, name, item
):
    file, other = folder / name, folder / "other" / name
    (folder / "A.npy").unlink()
    store_diagonal(file)
    store_diagonal(other, 7.0)
    for path in (other, *other.rglob("*")):
        os.utime(path, (1e9, 1e9))
    seen_by_workers({file: other})
    with pytest.raises(ClusterError, match=r"A\.\w+\S* is .* \(.*when it was changed[^;]*\)"):
        multiply(
            f"{file}{item}", folder / "B.npy", client=client, options=OPTIONS, out=folder / "X.npy"
        )


def test_one_worker_with_another_matrix_takes_no_part(folder, client, seen_by_workers):
    other = folder / "other" / "A.npy"
    np.save(other, np.load(folder / "A.npy") + 1)
    first, _ = client.nthreads()
    seen_by_workers({folder / "A.npy": other}, [first])
    report = products(folder, client)["A"]()
    assert len(report.devices) == 1
    a, b = (np.load(folder / f"{name}.npy") for name in "AB")
    assert_close_in_eps(np.load(folder / "X.npy"), a, b)


def copy_drafts(folder):
    """Make this process see copies of drafts, as they are when it opens them first."""
    for kind in (FileReference, StoreReference):
        original = getattr(kind.open, "original", kind.open)

        def open_copy(reference, *, writable=False, original=original):
            home = reference.home
            if ".part" in home.name:
                other = Path(folder, f"{os.getpid()}{home.name}")
                if not other.exists():
                    (shutil.copytree if home.is_dir() else shutil.copy2)(home, other)
                redirect({home: other})
                return type(reference).open(reference, writable=writable)
            return original(reference, writable=writable)

        open_copy.original = original
        kind.open = open_copy


@pytest.mark.parametrize("out", ["X.npy", "X.zarr::X", "X.h5::X"])
def test_a_worker_that_writes_to_another_draft_is_refused(folder, client, seen_by_workers, out):
    client.run(copy_drafts, f"{folder}/other")
    with pytest.raises(ClusterError, match=r"tcp://\S+: .*\.part.* is another file on"):
        products(folder, client, out=f"{folder}/{out}")["A"]()
    assert not (folder / out).exists()
    seen_by_workers({})
    products(folder, client, out=f"{folder}/{out}")["A"]()
    a, b = (np.load(folder / f"{name}.npy") for name in "AB")
    with hdgemm.open(f"{folder}/{out}") as c:
        assert_close_in_eps(np.asarray(c), a, b)


@pytest.mark.parametrize("routine", ["multiply", "syrk"])
@pytest.mark.parametrize("out", ["X.npy", "X.h5"])
def test_a_worker_that_writes_to_another_file_is_refused(
    folder, client, seen_by_workers, out, routine
):
    """Nothing is written to a matrix there that is overwritten here; the journal lies elsewhere."""
    item = "" if out == "X.npy" else "::X"
    with hdgemm.create(f"{folder}/{out}{item}", (N, N)) as c:
        c.write(np.full((N, N), 3.0))
    other = folder / "other" / out
    shutil.copy2(folder / out, other)
    seen_by_workers({folder / out: other})

    def call(result):
        how = {"client": client, "options": OPTIONS, "checkpoint": folder / "journal"}
        if routine == "syrk":
            return syrk(1.0, folder / "A.npy", lower=1, out=result, **how)
        return multiply(folder / "A.npy", folder / "B.npy", out=result, **how)

    with hdgemm.open(f"{folder}/{out}{item}", "r+") as c:
        with pytest.raises(ClusterError, match=rf"tcp://\S+: .*{out}.* is another file on"):
            call(c)
        with hdgemm.open(f"{other}{item}") as untouched:
            assert (np.asarray(untouched) == 3.0).all()
        seen_by_workers({})
        call(c)
        a, b = (np.load(folder / f"{name}.npy") for name in "AB")
        if routine == "syrk":
            assert (np.asarray(c)[np.triu_indices(N, 1)] == 3.0).all()
        else:
            assert_close_in_eps(np.asarray(c), a, b)


def test_a_worker_whose_files_change_is_asked_again(folder, client):
    """The identities that were compared with the client's are looked at before each block."""
    asked = []

    def replaced(_):
        if not asked:
            asked.append(client.run(forget_files))

    products(folder, client, progress=replaced)["A"]()
    a, b = (np.load(folder / f"{name}.npy") for name in "AB")
    assert_close_in_eps(np.load(folder / "X.npy"), a, b)
    assert asked


def forget_files():
    """Make the files of all jobs others than those that were compared."""
    from hdgemm.cluster import task

    for topic, known in task._JOBS.items():
        task._JOBS[topic] = known._replace(files=())


def test_marks_stay_in_the_triangle_that_is_computed(folder):
    with hdgemm.create(folder / "M.npy", (8, 8)) as m:
        c = m.operand.matrix
        for lower in (True, False):
            for row in range(0, 8, 2):
                for col in range(0, 8, 4):
                    place_mark(c, Rect(row, col, 2, 4), lower=lower)
            marked = np.asarray(m) != 0
            assert marked.any()
            assert not (np.triu(marked, 1) if lower else np.tril(marked, -1)).any()
            m.write(np.zeros((8, 8)))
        mark = place_mark(c, Rect(2, 2, 3, 3), lower=None)
        assert np.asarray(m)[mark.row, mark.col] == mark.value


@pytest.mark.parametrize("in_place", [False, True])
def test_two_clients_cannot_write_one_c(folder, client, in_place):
    """C has one lock, whichever journal a run has, also through a link to it."""
    if in_place:
        np.save(folder / "X.npy", np.zeros((N, N)))
    (folder / "link.npy").symlink_to(folder / "X.npy")
    refused = []

    def second(_):
        with ExitStack() as stack:
            for name in ("X.npy", "link.npy"):
                out = folder / name
                if in_place:
                    out = stack.enter_context(hdgemm.open(out, "r+"))
                with pytest.raises(InputError, match=r"another run is (over)?writing") as e:
                    products(folder, client, checkpoint=folder / "second", out=out)["A"]()
                refused.append(str(e.value))

    with ExitStack() as stack:
        out = folder / "X.npy"
        if in_place:
            out = stack.enter_context(hdgemm.open(out, "r+"))
        thread = threading.Thread(target=second, args=(None,))

        def once(_):
            if not refused and not thread.is_alive():
                thread.start()
                thread.join()

        products(folder, client, checkpoint=folder / "first", out=out, progress=once)["A"]()
    assert len(refused) == 2
    assert not (folder / ".X.npy.hdgemm-journal").exists()
    products(folder, client, checkpoint=folder / "second")["A"]()


def test_a_local_run_and_a_cluster_cannot_write_one_c(folder, client):
    caught = []

    def second(_):
        if not caught:
            with pytest.raises(InputError, match="another run is writing") as error:
                hdgemm.multiply(folder / "A.npy", folder / "B.npy", out=folder / "X.npy",
                                checkpoint=folder / "second")  # fmt: skip
            caught.append(error)

    products(folder, client, progress=second)["A"]()
    assert caught


def test_a_c_that_an_old_worker_has_open_is_not_begun(folder, client, monkeypatch):
    monkeypatch.setattr("hdgemm.matrices.filelocks._WAIT_SECONDS", 0.2)
    np.save(folder / "X.npy", np.zeros((N, N)))
    with hdgemm.open(folder / "X.npy", "r+") as c:
        old = hdgemm.open(folder / "X.npy", "r+")
        lock_for_writing(old.operand.matrix)
        with pytest.raises(InputError, match=r"worker of an earlier run has \S+X\.npy open"):
            products(folder, client, out=c)["A"]()
        old.close()
        products(folder, client, out=c)["A"]()
