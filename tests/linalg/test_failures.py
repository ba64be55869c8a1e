"""What a failed factorisation leaves behind, and refusals before it starts."""

import errno
import os
import shutil
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import hdgemm
from hdgemm import decomposition, fortran, linalg
from hdgemm.errors import MatrixIOError
from hdgemm.linalg import cho_factor, cholesky, lu_factor
from hdgemm.linalg.slabs import cholesky as cholesky_elimination, slab, slab as input_checks
from hdgemm.linalg.slabs.pipeline import SlabPipeline
from hdgemm.matrices.draft import wait_for_freed_space
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import BlockFile
from tests.counting import nth_call
from tests.linalg.matrices import positive_definite, random_matrix
from tests.linalg.tall import plan_tsqr

N = 40
SLABS = hdgemm.Options(tile=(1, 7, 3), host_memory="30MB")


def indefinite():
    a = positive_definite(N, "float64")
    a[25, 25] = -1
    return a


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_error_says_which_columns_are_overwritten(tmp_path, lower, checkpoint):
    a = indefinite()
    np.save(tmp_path / "A.npy", np.asarray(a, order="F" if lower else "C"))
    axis, stored = "columns" if lower else "rows", threading.Event()

    def observe(event):
        if event.stage == "store2" and event.unit == 2:
            stored.set()
        if event.stage == "mult1" and event.unit == 3:  # before its own block, which fails
            assert stored.wait(240)

    with pytest.raises(np.linalg.LinAlgError, match="leading minor of order 26") as caught:
        cholesky(tmp_path / "A.npy", lower, overwrite_a=True, options=SLABS, checkpoint=checkpoint,
                 observer=observe)  # fmt: skip
    text = str(caught.value)
    assert f"{axis} 0:21 of" in text
    assert "the others are as they were" in text
    found = np.load(tmp_path / "A.npy")
    rest = np.s_[:, 28:] if lower else np.s_[28:]
    np.testing.assert_array_equal(found[rest], a[rest])
    assert caught.value.order == 26


@pytest.mark.parametrize("strip", [slab.BLOCK_BYTES, 1])
def test_nothing_is_published_or_overwritten_where_the_first_slab_fails(
    tmp_path, monkeypatch, strip
):
    monkeypatch.setattr(slab, "BLOCK_BYTES", strip)
    np.save(tmp_path / "A.npy", -np.eye(N))
    before = (tmp_path / "A.npy").read_bytes()
    with pytest.raises(np.linalg.LinAlgError, match=r"A\.npy is unchanged"):
        cholesky(tmp_path / "A.npy", overwrite_a=True, options=SLABS)
    with pytest.raises(np.linalg.LinAlgError) as caught:
        cholesky(tmp_path / "A.npy", out=tmp_path / "L.npy", options=SLABS)
    assert "overwritten" not in str(caught.value)
    assert (tmp_path / "A.npy").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["A.npy"]


def test_no_column_is_overwritten_before_its_slab_is_computed(tmp_path, monkeypatch):
    """Of one slab in several chunks the last is not positive definite."""
    monkeypatch.setattr(slab, "BLOCK_BYTES", 1)
    for name in ("_WIDEST", "_NARROWEST"):
        monkeypatch.setattr(f"hdgemm.linalg.slabs.elimination.{name}", 8)
    a = np.asfortranarray(positive_definite(N, "float64"))
    a[-1, -1] = -1
    np.save(tmp_path / "A.npy", a)
    stored, factor = threading.Event(), cholesky_elimination.factor_panel

    def factor_late(part, first, *others):
        assert first < N - 8 or not stored.wait(0.3)
        return factor(part, first, *others)

    def observe(event):
        if event.stage == "store2":
            stored.set()

    monkeypatch.setattr(cholesky_elimination, "factor_panel", factor_late)
    options = hdgemm.Options(tile=(1, N, 3), host_memory="30MB")
    with pytest.raises(np.linalg.LinAlgError, match=r"order 40 .*A\.npy is unchanged"):
        cholesky(tmp_path / "A.npy", True, overwrite_a=True, options=options, observer=observe)
    np.testing.assert_array_equal(np.load(tmp_path / "A.npy"), a)


def test_a_slab_that_a_durable_run_has_begun_to_store_is_named(tmp_path, monkeypatch):
    a, write, second = random_matrix(N, N, "float64"), FileMatrix.write, nth_call(2)

    def tear(self, row, col, tile):
        if second():
            write(self, row, col, tile[:-1])
            raise MatrixIOError("no space", path="A.npy", offset=0, length=0)
        return write(self, row, col, tile)

    np.save(tmp_path / "A.npy", np.asfortranarray(a))
    monkeypatch.setattr(FileMatrix, "write", tear)
    with pytest.raises(MatrixIOError, match=r"0:7 of .* overwritten, columns 7:14 perhaps in part"):
        lu_factor(tmp_path / "A.npy", overwrite_a=True, options=SLABS, checkpoint=True)
    np.testing.assert_array_equal(np.load(tmp_path / "A.npy")[:, 14:], a[:, 14:])


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_matrix_that_is_factored_without_its_pivots_is_named(tmp_path, monkeypatch):
    np.save(tmp_path / "A.npy", np.asfortranarray(random_matrix(N, N, "float64")))
    monkeypatch.setattr(np, "save", full)
    with pytest.raises(MatrixIOError, match=r"bytes are free there.*A\.npy is factored, but the"):
        lu_factor(tmp_path / "A.npy", overwrite_a=True, options=SLABS)
    assert [path.name for path in tmp_path.iterdir()] == ["A.npy"]


@pytest.mark.parametrize("call", [lu_factor, lambda a, **how: linalg.qr(a, mode="raw", **how)])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_nothing_is_overwritten_where_its_pivots_have_no_space(
    tmp_path, monkeypatch, call, checkpoint
):
    np.save(tmp_path / "A.npy", np.asfortranarray(random_matrix(N, N, "float64")))
    before = (tmp_path / "A.npy").read_bytes()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(MatrixIOError, match=r"cannot reserve \d+ bytes for .*: No space") as caught:
        call(tmp_path / "A.npy", overwrite_a=True, options=SLABS, checkpoint=checkpoint)
    assert caught.value.requested >= 8 * N
    assert (tmp_path / "A.npy").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["A.npy"]


def test_the_pivots_have_no_name_before_they_are_complete(tmp_path, monkeypatch):
    np.save(tmp_path / "A.npy", random_matrix(N, N, "float64"))
    seen, sync = [], BlockFile.flush
    monkeypatch.setattr(
        BlockFile, "flush", lambda file: (sync(file), seen.extend(tmp_path.iterdir()))
    )
    lu_factor(tmp_path / "A.npy", out=tmp_path / "F.npy", options=SLABS)
    monkeypatch.undo()
    assert {path.name for path in seen} == {"A.npy"}
    linalg.open(tmp_path / "F.npy")


@pytest.mark.parametrize("long", ["x" * 247, "é" * 123])
def test_names_as_long_as_the_file_system_takes(tmp_path, long):
    a, out = positive_definite(N, "float64"), tmp_path / f"{long}.npy"
    hdgemm.syrk(1.0, a, out=out, options=SLABS)
    np.testing.assert_allclose(np.triu(np.load(out)), np.triu(a @ a.T))
    before = out.read_bytes()
    with pytest.raises(hdgemm.InputError, match=r"cannot create .*: File name too long"):
        lu_factor(a, out=out, options=SLABS)  # its description has a longer name
    assert out.read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_two_runs_do_not_overwrite_one_file(tmp_path, checkpoint):
    a, refused = np.asfortranarray(random_matrix(N, N, "float64")), []
    first = nth_call(1)
    np.save(tmp_path / "A.npy", a)

    def observe(_event):
        if first():
            with pytest.raises(hdgemm.InputError, match="another run is overwriting") as caught:
                lu_factor(tmp_path / "A.npy", overwrite_a=True, options=SLABS)
            refused.append(caught)

    again = {"options": SLABS, "checkpoint": checkpoint}
    lu_factor(tmp_path / "A.npy", overwrite_a=True, observer=observe, **again)
    assert refused
    expected, _ = lu_factor(a, out=tmp_path / "F.npy", options=SLABS)
    np.testing.assert_array_equal(np.load(tmp_path / "A.npy"), expected)


def test_a_folder_that_is_removed_during_a_durable_run_is_named(tmp_path):
    np.save(tmp_path / "A.npy", random_matrix(8 * N, N, "float64"))
    (tmp_path / "below").mkdir()

    def remove(_event):
        shutil.rmtree(tmp_path / "below", ignore_errors=True)

    with pytest.raises(hdgemm.InputError, match=r"cannot create .*: there is no folder"):
        linalg.lstsq(tmp_path / "A.npy", np.ones(8 * N), out=tmp_path / "below" / "X.npy",
                     options=SLABS, checkpoint=True, observer=remove)  # fmt: skip


@pytest.mark.parametrize("mode", ["full", "raw"])
@pytest.mark.parametrize("folder", ["small", "missing"])
def test_a_durable_qr_checks_the_place_of_r_before_it_factors(tmp_path, monkeypatch, mode, folder):
    np.save(tmp_path / "A.npy", random_matrix(N, N, "float64"))
    events, usage = [], shutil.disk_usage
    if folder == "small":
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=1000))
    with pytest.raises(hdgemm.HdgemmError, match=r"1000 bytes are free|there is no folder"):
        linalg.qr(tmp_path / "A.npy", mode=mode,
                  out=(tmp_path / "Q.npy", tmp_path / folder / "R.npy"), options=SLABS,
                  checkpoint=True, observer=events.append)  # fmt: skip
    assert events == []
    assert not [path for path in tmp_path.iterdir() if path.name not in ("A.npy", "small")]


def test_the_tau_of_a_durable_qr_does_not_replace_a(tmp_path):
    np.save(tmp_path / "F.tau.npy", random_matrix(N, N, "float64"))
    before = (tmp_path / "F.tau.npy").read_bytes()
    with pytest.raises(hdgemm.InputError, match="choose another out"):
        linalg.qr(tmp_path / "F.tau.npy", mode="raw", out=(tmp_path / "F.npy", tmp_path / "R.npy"),
                  options=SLABS, checkpoint=True)  # fmt: skip
    assert (tmp_path / "F.tau.npy").read_bytes() == before


def test_a_slab_that_is_not_stored_again_is_not_said_to_be(tmp_path, monkeypatch):
    """The second slab has the last order of its rows before the store of the first one fails."""
    store, second = SlabPipeline._store, threading.Event()

    def fail_first(self, slab, after):
        if self._pass_number == 1 and slab.number == 0:
            assert second.wait(120)
            raise MatrixIOError("no space", path="A.npy", offset=0, length=0)
        store(self, slab, after)
        if self._pass_number == 1:
            second.set()

    np.save(tmp_path / "A.npy", np.asfortranarray(random_matrix(N, N, "float64")))
    monkeypatch.setattr(SlabPipeline, "_store", fail_first)
    with pytest.raises(MatrixIOError, match="only columns 0:0 have L's rows"):
        lu_factor(tmp_path / "A.npy", overwrite_a=True, options=SLABS)


def test_a_failure_at_the_last_columns_of_l_publishes_no_u(tmp_path):
    a, out = random_matrix(20, 20, "float64"), (tmp_path / "L.npy", tmp_path / "U.npy")
    events = []
    linalg.lu(a, out=out, options=SLABS, observer=events.append)
    for path in out:
        path.unlink()
    left = iter(events[1:])

    def fail(_event):
        if next(left, None) is None:
            raise MatrixIOError("no space", path="L.npy", offset=0, length=0)

    with pytest.raises(MatrixIOError):
        linalg.lu(a, out=out, options=SLABS, observer=fail)
    assert not any(path.exists() for path in out)


@pytest.mark.parametrize("call", [cholesky, lu_factor, linalg.qr, linalg.lstsq])
def test_a_matrix_that_changes_during_a_run_is_named(tmp_path, call):
    np.save(tmp_path / "A.npy", positive_definite(N, "float64"))
    (tmp_path / "out").mkdir()
    out = [tmp_path / "out" / name for name in ("F.npy", "R.npy")]
    operands = [tmp_path / "A.npy"] + [np.ones(N)] * (call is linalg.lstsq)

    def change(_event):
        os.utime(tmp_path / "A.npy", ns=(0, 0))

    with pytest.raises(MatrixIOError, match=r"A \(.*A\.npy\) .* during the run"):
        call(*operands, out=tuple(out) if call is linalg.qr else out[0], options=SLABS,
             observer=change)  # fmt: skip
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    "call",
    [
        linalg.norm,
        partial(linalg.svds, k=2),
        partial(linalg.svds, k=2, return_singular_vectors=False),
        partial(linalg.eigsh, k=2),
        partial(linalg.ridge, b=np.ones(N), alphas=1.0),
        partial(decomposition.pca, k=2, svd_solver="krylov"),
    ],
)
def test_a_matrix_that_changes_while_results_are_in_memory_is_named(tmp_path, call):
    np.save(tmp_path / "A.npy", positive_definite(N, "float64"))

    def change(_event):
        os.utime(tmp_path / "A.npy", ns=(0, 0))

    with pytest.raises(MatrixIOError, match=r"A \(.*A\.npy\) .* during the run"):
        call(tmp_path / "A.npy", options=SLABS, observer=change)


def test_an_array_that_is_overwritten_is_named():
    a = np.asfortranarray(indefinite())
    with pytest.raises(np.linalg.LinAlgError, match=r"array .* overwritten in part"):
        cholesky(a, lower=True, overwrite_a=True)
    with pytest.raises(np.linalg.LinAlgError) as caught:
        cholesky(a)
    assert "overwritten" not in str(caught.value)


def test_an_out_that_takes_no_result_is_named():
    a = np.eye(4)
    for out in (np.eye(4, dtype=int), np.frombuffer(bytes(128)).reshape(4, 4)):
        with pytest.raises(hdgemm.InputError, match=r"^out (has dtype|is to be)"):
            linalg.lu_factor(a, out=out)


@pytest.mark.parametrize("call", [
    lambda a, out, **named: cholesky(a, out=out, **named),
    lambda a, out, **named: linalg.lu(a, out=(out, out.with_suffix(".u.npy")), **named),
    lambda a, out, **named: linalg.qr(a, out=(out, out.with_suffix(".r.npy")), **named),
    lambda a, out, **named: linalg.qr_multiply(a, a, out=(out, out.with_suffix(".r.npy")), **named),
    lambda a, out, **named: linalg.lstsq(a, a, out=out, **named),
    lambda a, out, **named: linalg.solve(a, a, out=out, **named),
])  # fmt: skip
def test_a_failed_call_keeps_no_file_open(tmp_path, call):
    a = positive_definite(N, "float64")
    a[30, 31] = a[31, 30] = np.nan
    np.save(tmp_path / "A.npy", a)
    with pytest.raises(hdgemm.InputError, match="infs or NaNs") as caught:
        call(tmp_path / "A.npy", tmp_path / "F.npy", options=SLABS)
    wait_for_freed_space()
    # The error, which `caught` holds, refers to the frames of the call.
    held = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
    assert not [path for path in held if path.is_relative_to(tmp_path)], caught.value


@pytest.mark.parametrize("call", [linalg.lu_factor, linalg.cholesky])
def test_the_first_of_many_nans_is_named(monkeypatch, call):
    monkeypatch.setattr(input_checks, "_CHECKED_BYTES", 1)  # a piece of the pool for each column
    a = np.asfortranarray(positive_definite(N, "float64"))
    rows = np.random.default_rng(4).permutation(N)
    a[rows, np.arange(N)] = np.nan
    lower = rows >= np.arange(N) if call is linalg.cholesky else rows >= 0
    with pytest.raises(hdgemm.InputError, match="infs or NaNs") as caught:
        call(a, **({"lower": True} if call is linalg.cholesky else {}))
    first = np.flatnonzero(lower)[0]
    assert (caught.value.row, caught.value.col) == (rows[first], first)


@pytest.mark.parametrize(("stage", "slab"), [("mult1", 3), ("load1", 0)])
def test_cancelling_in_place_says_what_is_left(tmp_path, stage, slab):
    np.save(tmp_path / "A.npy", np.asfortranarray(random_matrix(N, N, "float64")))
    cancel = threading.Event()

    def observe(event):
        if event.stage == stage and event.unit == slab:
            cancel.set()

    with pytest.raises(hdgemm.CancelledRunError, match=r"A\.npy"):
        lu_factor(
            tmp_path / "A.npy", overwrite_a=True, options=SLABS, observer=observe, cancel=cancel
        )


def test_an_observers_error_carries_the_state(tmp_path):
    np.save(tmp_path / "A.npy", np.asfortranarray(random_matrix(N, N, "float64")))

    def observe(event):
        if event.stage == "store2" and event.unit == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        lu_factor(tmp_path / "A.npy", overwrite_a=True, options=SLABS, observer=observe)
    assert any("columns 0:35 of" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("call", "lower", "checkpoint"),
    [(cholesky, False, False), (cholesky, True, True), (cho_factor, True, False)],
)
def test_the_other_triangle_of_a_file_is_a_hole(tmp_path, call, lower, checkpoint):
    n = 512
    a = np.eye(n, dtype="complex128") + 1 / n
    options = hdgemm.Options(tile=(1, 64, 64), host_memory="60MB")
    call(a, lower, out=tmp_path / "L.npy", options=options, checkpoint=checkpoint)
    status = (tmp_path / "L.npy").stat()
    assert status.st_size >= 16 * n * n
    # Holes are made of blocks; a column has two.
    assert status.st_blocks * 512 < 0.85 * status.st_size
    found = np.load(tmp_path / "L.npy")
    assert not (np.triu(found, 1) if lower else np.tril(found, -1)).any()


@pytest.mark.parametrize("call", [cholesky, lu_factor])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_full_disk_is_named_before_the_first_slab(tmp_path, monkeypatch, call, checkpoint):
    events = []
    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(os, "fstatvfs", lambda _: os.statvfs_result((1, 1, 0, 0, 0, 0, 0, 0, 0, 0)))
    with pytest.raises(hdgemm.MatrixIOError, match=r"bytes for [^ ]*/F\.npy:") as caught:
        call(np.eye(N), out=tmp_path / "F.npy", options=SLABS, observer=events.append,
             checkpoint=checkpoint)  # fmt: skip
    assert caught.value.requested >= 8 * N * N / 2
    assert events == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", [cholesky, lu_factor])
def test_memory_for_one_slab_is_named(tmp_path, call):
    a = np.eye(N)
    for memory in (1_000_000, hdgemm.Options(host_memory=1).host_bytes):
        with pytest.raises(hdgemm.DoesNotFitError) as caught:
            call(a, out=tmp_path / "F.npy", options=hdgemm.Options(host_memory=memory))
        enough = memory + caught.value.missing
        call(a, out=tmp_path / "F.npy", options=hdgemm.Options(host_memory=enough))


def test_counts_of_elements_are_not_lapacks_integers(tmp_path, monkeypatch):
    monkeypatch.setattr(fortran, "LARGEST", 2 * N)
    a = positive_definite(N, "float64")
    for call in (cholesky, lu_factor):
        call(a, out=tmp_path / "F.npy", options=SLABS)  # slabs of 280 elements
    monkeypatch.setattr(fortran, "LARGEST", N - 1)
    with pytest.raises(hdgemm.InputError, match="more than LAPACK takes"):
        lu_factor(a, out=tmp_path / "F.npy", options=SLABS)


def test_a_view_beyond_32_bit_counts_of_elements(tmp_path):
    n, m = 46_400, 30
    a = random_matrix(m, m, "float32")
    large = np.lib.format.open_memmap(tmp_path / "A.npy", "w+", "float32", (n, n), True)
    large[-m:, -m:] = a
    large.flush()
    del large
    with hdgemm.open(tmp_path / "A.npy", "r+") as stored:
        view = stored[n - m :, n - m :]
        lu, pivots = lu_factor(view, overwrite_a=True, options=SLABS)
        assert lu is view
        expected, expected_pivots = lu_factor(a, out=tmp_path / "F.npy", options=SLABS)
        np.testing.assert_array_equal(np.asarray(view), expected)
        np.testing.assert_array_equal(pivots, expected_pivots)


@pytest.mark.parametrize("given", [5, b"journal", 2.5])
@pytest.mark.parametrize("call", [lu_factor, linalg.lstsq, hdgemm.multiply])
def test_a_checkpoint_is_a_bool_or_a_path(tmp_path, call, given):
    a = np.eye(4)
    operands = (a,) if call is lu_factor else (a, a)
    with pytest.raises(hdgemm.InputTypeError, match="checkpoint must be True, False or the path"):
        call(*operands, out=tmp_path / "F.npy", checkpoint=given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cond", ["a", np.nan, [1]])
def test_a_condition_is_a_number(cond):
    with pytest.raises(hdgemm.InputError, match="cond must be a number"):
        linalg.lstsq(np.eye(4), np.ones(4), cond=cond)


def test_more_threads_than_rows_are_planned_at_once():
    assert 1 <= plan_tsqr(50, 4, 1, 10**8, 10**18).cores <= 50


@pytest.mark.parametrize(
    ("refusal", "error", "words"),
    [
        (MemoryError("no"), hdgemm.DoesNotFitError, "the system refused memory; lower host_memory"),
        (RuntimeError("can't start new thread"), hdgemm.HdgemmError, "refused to start a thread"),
    ],
)
def test_what_the_system_refuses_is_named(monkeypatch, refusal, error, words):
    def refuse(*_):
        raise refusal

    monkeypatch.setattr("hdgemm.linalg.inverse.norm_inf", refuse)
    with pytest.raises(error, match=words):
        linalg.cond(np.eye(4))


def test_arrays_that_do_not_fit_are_named_with_their_bytes(monkeypatch):
    monkeypatch.setattr("hdgemm.linalg.inverse.norm_inf", lambda *_: np.empty((1 << 50, 8)))
    with pytest.raises(hdgemm.DoesNotFitError, match="refused 72,057,594,037,927,936 bytes") as e:
        linalg.cond(np.eye(4))
    assert e.value.requested == 1 << 56


STORED = [
    linalg.lu_factor,
    linalg.cholesky,
    lambda a, out, **how: linalg.qr(a, mode="raw", out=out, **how),
]


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("call", STORED)
def test_a_factor_that_cannot_be_named_leaves_the_earlier_one(
    tmp_path, monkeypatch, call, checkpoint
):
    np.save(tmp_path / "A.npy", positive_definite(N, "float64"))
    call(tmp_path / "A.npy", out=tmp_path / "F.npy", options=SLABS)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    np.save(tmp_path / "B.npy", 2 * np.load(tmp_path / "A.npy"))
    again = {"options": SLABS, "checkpoint": checkpoint}

    def refuse(_draft):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("hdgemm.matrices.draft.FileDraft._give_name", refuse)
        with pytest.raises(hdgemm.HdgemmError, match=r"cannot rename .*F\.npy: .*Input/output"):
            call(tmp_path / "B.npy", out=tmp_path / "F.npy", **again)
    left = {path.name: path.read_bytes() for path in tmp_path.glob("[!.]*")}
    assert left.pop("B.npy")
    assert left == before
    linalg.open(tmp_path / "F.npy")
    call(tmp_path / "B.npy", out=tmp_path / "F.npy", **again)
    linalg.open(tmp_path / "F.npy")
    assert len(list(tmp_path.glob(".*"))) == checkpoint


@pytest.mark.parametrize("call", STORED)
def test_a_run_that_ends_between_publication_and_its_note_is_finished(tmp_path, monkeypatch, call):
    np.save(tmp_path / "A.npy", positive_definite(N, "float64"))
    call(tmp_path / "A.npy", out=tmp_path / "R.npy", options=SLABS)

    def fail(_operand):
        raise hdgemm.MatrixIOError("cannot read 8 bytes", path="F.npy", offset=0, length=8)

    with monkeypatch.context() as patch:
        patch.setattr("hdgemm.durable.checkpoint.fingerprint", fail)
        with pytest.raises(hdgemm.MatrixIOError):
            call(tmp_path / "A.npy", out=tmp_path / "F.npy", options=SLABS, checkpoint=True)
    call(tmp_path / "A.npy", out=tmp_path / "F.npy", options=SLABS, checkpoint=True)
    assert (tmp_path / "F.npy").read_bytes() == (tmp_path / "R.npy").read_bytes()
    linalg.open(tmp_path / "F.npy")


@pytest.mark.parametrize("call", [linalg.cond, linalg.det, linalg.inv])
def test_a_tile_beyond_every_matrix_is_cut(tmp_path, call):
    np.save(tmp_path / "A.npy", positive_definite(N, "float64"))
    options = hdgemm.Options(tile=(1, 10**30, 10**30), host_memory="30MB")
    expected, found = (
        np.atleast_1d(call(a, **how))[0]
        for a, how in (
            (np.load(tmp_path / "A.npy"), {}),
            (tmp_path / "A.npy", {"options": options}),
        )
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


REDUCING = {
    "svd": linalg.svd,
    "gesvd": lambda a, **how: linalg.svd(a, lapack_driver="gesvd", **how),
    "svdvals": linalg.svdvals,
    "gram": lambda a, **how: linalg.svdvals(a, method="gram", **how),
    "pinv": linalg.pinv,
    "norm": lambda a, **how: linalg.norm(a, 2, **how),
    "ridge": lambda a, **how: linalg.ridge(a, np.ones(len(a)), 1.0, **how),
    "lstsq": lambda a, **how: linalg.lstsq(a, np.ones(len(a)), **how),
    "gelsy": lambda a, **how: linalg.lstsq(a, np.ones(len(a)), lapack_driver="gelsy", **how),
    "wide": lambda a, **how: linalg.lstsq(a.T, np.ones(a.shape[1]), **how),
}


@pytest.mark.parametrize("call", REDUCING)
@pytest.mark.parametrize("element", [np.inf, np.nan, 1e307])
def test_a_triangle_or_sum_that_is_not_finite_is_an_input_error(capfd, call, element):
    a = random_matrix(300, 23, "float64", seed=1)
    if element == 1e307:
        a, how = a * element, {}
    else:
        a[150, 7], how = element, {"check_finite": False}
    with pytest.raises(hdgemm.InputError, match=r"is not finite.*scale A.*check_finite=True"):
        REDUCING[call](a, **how)
    assert "DLASCL" not in capfd.readouterr().err  # printed by LAPACK
