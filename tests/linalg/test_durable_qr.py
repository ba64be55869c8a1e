"""Durable QR with R and Q, and durable reductions of rows: resumed to the same bits."""

import tracemalloc

import numpy as np
import pytest

import hdgemm
from hdgemm.linalg import lstsq, qr, qr_multiply
from hdgemm.linalg._checkpoint import SlabCheckpoint
from hdgemm.linalg.rows import checkpoint as row_checkpoint
from tests.linalg.interruption import InterruptedRunError, interrupt_after
from tests.linalg.matrices import SOUND, random_matrix, residual_ratio

SLABS = hdgemm.Options(tile=(1, 6, 3), host_memory="30MB")
ROWS = hdgemm.Options(tile=(10, 1, 1), threads=2)


def factored(folder, mode, name, **keywords):
    """Factor A.npy into files; return their names."""
    q, r = folder / f"{name}Q.npy", folder / f"{name}R.npy"
    out = r if mode == "r" else (q, r)
    qr(folder / "A.npy", mode=mode, out=out, options=SLABS, checkpoint=True, **keywords)
    return (r,) if mode == "r" else (q, r)


@pytest.mark.parametrize("shape", [(20, 14), (12, 17)])
@pytest.mark.parametrize("mode", ["full", "economic", "raw", "r"])
def test_an_interrupted_factorisation_goes_on_to_the_same_bits(tmp_path, mode, shape):
    a = random_matrix(*shape, "float64")
    np.save(tmp_path / "A.npy", a)
    events, reports = [], []
    expected = factored(tmp_path, mode, "whole", observer=events.append, report=reports.append)
    for part in (0.4, 0.95):
        with pytest.raises(InterruptedRunError):
            factored(
                tmp_path, mode, "", restart=True, observer=interrupt_after(int(part * len(events)))
            )
        found = factored(tmp_path, mode, "", report=reports.append)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.load(one), np.load(other))
    assert not [path.name for path in tmp_path.iterdir() if ".work" in path.name]
    assert reports[-1].resumption.kept > 0
    if mode in ("full", "economic"):
        q, r = map(np.load, expected)
        assert residual_ratio(q @ r - a, a) < SOUND


def test_r_keeps_its_slabs_when_the_reflectors_are_lost(tmp_path, monkeypatch):
    np.save(tmp_path / "A.npy", random_matrix(40, 40, "float64"))
    store = SlabCheckpoint.store

    def store_one(done, pass_number, place, *rest):
        if done.place.path.name == "R.npy" and place.first:
            raise InterruptedRunError
        store(done, pass_number, place, *rest)

    command = {"mode": "r", "out": tmp_path / "R.npy", "checkpoint": True}
    with monkeypatch.context() as patch:
        patch.setattr(SlabCheckpoint, "store", store_one)
        with pytest.raises(InterruptedRunError):
            qr(tmp_path / "A.npy", options=SLABS, **command)
    for path in tmp_path.glob("*.work*"):
        path.unlink()
    (found,) = qr(tmp_path / "A.npy", options=hdgemm.Options(host_memory="40MB"), **command)
    (expected,) = qr(np.load(tmp_path / "A.npy"), mode="r")
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-12)


@pytest.mark.parametrize("dtypes", [("float64", "complex128"), ("float32", "float64")])
@pytest.mark.parametrize("mode", ["left", "right"])
def test_a_durable_product_with_q_has_the_precision_of_both_operands(tmp_path, mode, dtypes):
    a, c = random_matrix(20, 14, dtypes[0]), random_matrix(20, 20, dtypes[1])
    found = []
    for name, durable in (("durable", True), ("plain", False)):
        out = tmp_path / f"{name}.npy", tmp_path / f"{name}R.npy"
        found.append(qr_multiply(a, c, mode, out=out, options=SLABS, checkpoint=durable))
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype == dtypes[1]
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_results_in_memory_have_no_checkpoint(tmp_path):
    a = random_matrix(9, 9, "float64")
    for arguments in ({"mode": "full"}, {"mode": "r"}, {"mode": "r", "out": np.zeros((9, 9))}):
        with pytest.raises(hdgemm.InputError, match="files"):
            qr(a, checkpoint=True, **arguments)
    with pytest.raises(hdgemm.InputError, match="file"):
        lstsq(random_matrix(40, 3, "float64"), np.ones(40), checkpoint=True)


@pytest.mark.parametrize("mode", ["left", "right"])
def test_an_interrupted_product_with_q_goes_on_to_the_same_bits(tmp_path, mode):
    a, c = random_matrix(20, 12, "complex128"), random_matrix(20, 15, "complex128", 1)
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "C.npy", c if mode == "left" else c.T)

    def multiplied(name, **keywords):
        out = tmp_path / f"{name}X.npy", tmp_path / f"{name}R.npy"
        return hdgemm.linalg.qr_multiply(
            tmp_path / "A.npy", tmp_path / "C.npy", mode, out=out, options=SLABS,
            checkpoint=True, **keywords,
        )  # fmt: skip

    events, reports = [], []
    expected = multiplied("whole", observer=events.append, report=reports.append)
    assert reports[0].moved_bytes == reports[0].planned_bytes
    for part in (0.3, 0.9):
        with pytest.raises(InterruptedRunError):
            multiplied("", restart=True, observer=interrupt_after(int(part * len(events))))
        for _ in range(2):  # goes on; then it is finished
            for one, other in zip(multiplied("", report=reports.append), expected, strict=True):
                np.testing.assert_array_equal(one, other)
    assert reports[-2].moved_bytes == reports[-2].planned_bytes
    assert reports[-1].resumption.finished
    q, _ = hdgemm.linalg.qr(a, mode="economic" if mode == "right" else "full")
    product = q @ c if mode == "left" else c.T @ q
    np.testing.assert_allclose(expected[0], product, atol=1e-12)
    np.save(tmp_path / "C.npy", np.zeros_like(c if mode == "left" else c.T))
    with pytest.raises(hdgemm.InputError, match="belongs to another run"):
        multiplied("")
    with pytest.raises(hdgemm.InputError, match="file"):
        hdgemm.linalg.qr_multiply(a, c, "left", checkpoint=True)


@pytest.mark.parametrize("permute_l", [False, True])
@pytest.mark.parametrize("shape", [(20, 14), (12, 17)])
def test_an_interrupted_lu_with_separate_factors_goes_on_to_the_same_bits(
    tmp_path, shape, permute_l
):
    a = random_matrix(*shape, "float64")
    np.save(tmp_path / "A.npy", a)

    def factors(name, **keywords):
        out = tmp_path / f"{name}L.npy", tmp_path / f"{name}U.npy"
        return hdgemm.linalg.lu(
            tmp_path / "A.npy",
            permute_l,
            p_indices=True,
            out=out,
            options=SLABS,
            checkpoint=True,
            **keywords,
        )

    events, reports = [], []
    expected = factors("whole", observer=events.append, report=reports.append)
    assert reports[0].moved_bytes == reports[0].planned_bytes
    for part in (0.3, 0.98):
        with pytest.raises(InterruptedRunError):
            factors("", restart=True, observer=interrupt_after(int(part * len(events))))
        for _ in range(2):
            for one, other in zip(factors(""), expected, strict=True):
                np.testing.assert_array_equal(one, other)
    assert not [path.name for path in tmp_path.iterdir() if ".work" in path.name]
    *_, lower, upper = expected
    product = lower @ upper if permute_l else lower[expected[0]] @ upper
    assert residual_ratio(product - a, a) < SOUND
    with pytest.raises(hdgemm.InputError, match="files"):
        hdgemm.linalg.lu(a, checkpoint=True)


@pytest.fixture
def tall(tmp_path, monkeypatch):
    monkeypatch.setattr(row_checkpoint, "_INTERVAL", 0)
    np.save(tmp_path / "A.npy", random_matrix(100, 4, "float64"))
    np.save(tmp_path / "b.npy", random_matrix(100, 2, "float64", 1))
    return tmp_path


def solved(folder, name, **keywords):
    """Return what lstsq returns for the files of a folder."""
    return lstsq(folder / "A.npy", folder / "b.npy", out=folder / name, options=ROWS,
                 checkpoint=True, **keywords)  # fmt: skip


def test_an_interrupted_least_squares_goes_on_to_the_same_bits(tall):
    reports = []
    expected = solved(tall, "whole.npy", report=reports.append)
    before = sorted(path.name for path in tall.iterdir())
    assert before == ["A.npy", "b.npy", "whole.npy"]
    with pytest.raises(InterruptedRunError):
        solved(tall, "X.npy", observer=interrupt_after(25))
    assert not (tall / "X.npy").exists()
    found = solved(tall, "X.npy", report=reports.append)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert sorted(path.name for path in tall.iterdir()) == ["A.npy", "X.npy", "b.npy", "whole.npy"]
    assert 0 < reports[1].resumption.kept < reports[1].resumption.tiles == 10
    assert reports[1].moved_bytes == reports[1].planned_bytes


@pytest.mark.parametrize("damage", [b"", b"PK\3\4 and no more", None])
def test_a_damaged_record_of_a_core_is_computed_again(tall, damage):
    expected = solved(tall, "whole.npy")
    with pytest.raises(InterruptedRunError):
        solved(tall, "X.npy", observer=interrupt_after(25))
    [record] = tall.glob(".*rows0-0.npz")
    content = record.read_bytes()
    record.write_bytes(content[:-200] + bytes(180) + content[-20:] if damage is None else damage)
    found = solved(tall, "X.npy")
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_r_of_an_interrupted_tall_matrix_has_the_same_bits(tall):
    (expected,) = qr(tall / "A.npy", mode="r", out=tall / "whole.npy", options=ROWS)
    with pytest.raises(InterruptedRunError):
        qr(tall / "A.npy", mode="r", out=tall / "R.npy", options=ROWS, checkpoint=True,
           observer=interrupt_after(15))  # fmt: skip
    (found,) = qr(tall / "A.npy", mode="r", out=tall / "R.npy", options=ROWS, checkpoint=True)
    np.testing.assert_array_equal(found, expected)


def test_other_commands_are_refused_and_restart_begins_again(tall):
    with pytest.raises(InterruptedRunError):
        solved(tall, "X.npy", observer=interrupt_after(25))
    with pytest.raises(hdgemm.InputError, match=r"cond was None, is 0\.5"):
        solved(tall, "X.npy", cond=0.5)
    np.save(tall / "b.npy", random_matrix(100, 2, "float64", 2))
    with pytest.raises(hdgemm.InputError, match="b has changed"):
        solved(tall, "X.npy")
    x, *_ = solved(tall, "X.npy", restart=True)
    y, *_ = lstsq(tall / "A.npy", tall / "b.npy", options=ROWS)
    np.testing.assert_array_equal(x, y)


def test_r_of_one_slab_is_copied_within_the_memory(tmp_path):
    n = 1200
    np.save(tmp_path / "A.npy", np.random.default_rng(0).standard_normal((n, n)))
    reports, options = [], hdgemm.Options(tile=(1, n, 64), devices="host")
    tracemalloc.start()
    qr(
        tmp_path / "A.npy", mode="r", out=tmp_path / "R.npy", options=options, checkpoint=True,
        report=reports.append,
    )  # fmt: skip
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < reports[-1].plan["host_bytes"]
