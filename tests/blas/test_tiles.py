"""Operands and results without a file: generated matrices, functions of tiles, streams, `topk`."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import hdgemm
from hdgemm.blas.stream import _Handover
from hdgemm.errors import (
    CancelledRunError,
    DoesNotFitError,
    InputError,
    InputTypeError,
)

TILED = hdgemm.Options(host_memory="20MB", devices="host", tile=(32, 24, 16))
X = np.linspace(0, 3, 90)


def gauss(rows, cols):
    return np.exp(-((X[rows, np.newaxis] - X[np.newaxis, cols]) ** 2))


WHOLE = gauss(slice(0, 90), slice(0, 90))


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def test_a_generated_matrix_is_an_operand_of_every_call(tmp_path):
    k = hdgemm.generated((90, 90), "float64", gauss)
    shifted = hdgemm.generated((90, 90), "float64", lambda r, c: gauss(r, c) + np.eye(90)[r, c])
    b = numbers(90, 40)
    for found, wanted in (
        (hdgemm.matmul(k, b, options=TILED), WHOLE @ b),
        (k[10:, 3:7].T @ b[10:], WHOLE[10:, 3:7].T @ b[10:]),
        (hdgemm.matmul(k[::2, ::-1], b), WHOLE[::2, ::-1] @ b),
        (hdgemm.linalg.cholesky(shifted, lower=True), np.linalg.cholesky(WHOLE + np.eye(90))),
        (hdgemm.linalg.solve(shifted, b), np.linalg.solve(WHOLE + np.eye(90), b)),
        (k.read(), WHOLE),
        (k[5], WHOLE[5]),
    ):
        np.testing.assert_allclose(found, wanted, atol=1e-12)
    out = hdgemm.matmul(k, k, out=tmp_path / "C.npy", options=TILED)
    np.testing.assert_allclose(out, WHOLE @ WHOLE, atol=1e-12)
    assert hdgemm.verify(k, k, out).passed
    small = hdgemm.generated((90, 90), "int8", lambda r, c: np.ones((90, 90), np.int8)[r, c])
    assert (hdgemm.matmul(small, small, options=TILED) == 90).all()


def test_blocks_of_a_generated_matrix_are_small():
    asked = []

    def ones(rows, cols):
        asked.append((rows.stop - rows.start) * (cols.stop - cols.start))
        return np.ones((rows.stop - rows.start, cols.stop - cols.start))

    m = hdgemm.generated((3000, 1000), "float64", ones)
    assert (m @ np.ones(1000) == 1000).all()
    assert max(asked) * 8 <= 1 << 20


def within_minutes(call):
    """Return what a call returns; fail where it waits for itself."""
    found = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(120)
    assert found
    return found[0]


def test_functions_read_matrices_and_multiply(tmp_path):
    a, ones = numbers(1500, 1000), np.ones((1000, 3))
    # A tile of A has several blocks, of at most 1 MB.
    wide = hdgemm.Options(host_memory="40MB", devices="host", tile=(400, 400, 1000))
    np.save(tmp_path / "A.npy", a)
    with hdgemm.open(tmp_path / "A.npy") as stored:
        read = hdgemm.generated(a.shape, "float64", lambda r, c: 2 * np.asarray(stored[r, c]))
        product = hdgemm.generated(
            (1500, 1500), "float64", lambda r, c: hdgemm.matmul(read[r], stored[c].T, options=wide)
        )
        found = within_minutes(lambda: hdgemm.matmul(read, ones, options=TILED))
        np.testing.assert_allclose(found, 2 * a @ ones, atol=1e-10)
        # Blocks of a product of a generated matrix: more blocks than threads, on two levels.
        np.testing.assert_allclose(within_minutes(product.read), 2 * a @ a.T, atol=1e-10)


def test_functions_in_all_threads_wait_for_blocks_of_another_function():
    a = numbers(1500, 1500)
    inner = hdgemm.generated(a.shape, "float64", lambda r, c: a[r, c])
    outer = hdgemm.generated(
        a.shape, "float64", lambda r, c: np.asarray(inner[:900, :1500]).max() * a[r, c]
    )
    np.testing.assert_array_equal(within_minutes(outer.read), a[:900].max() * a)


def test_a_function_cannot_wait_for_the_session_that_calls_it():
    with hdgemm.Session(TILED) as session:
        a = np.eye(300)
        f = hdgemm.generated(
            a.shape, "float64", lambda r, c: hdgemm.matmul(a[r], a[:, c], session=session)
        )

        def refused():
            with pytest.raises(InputError, match="another session"):
                hdgemm.matmul(f, np.eye(300), session=session)
            return True

        assert within_minutes(refused)


def test_what_a_function_does_wrong_is_said():
    def broken(rows, cols):
        raise ZeroDivisionError("of the user")

    with pytest.raises(ZeroDivisionError, match="of the user"):
        hdgemm.matmul(hdgemm.generated((50, 50), "float64", broken), np.eye(50), options=TILED)
    for f, error, words in (
        (lambda r, c: np.ones(3), InputError, r"shape \(3,\)"),
        (lambda r, c: 1j * gauss(r, c), InputTypeError, "complex128"),
        (lambda r, c: gauss(r, c).astype(str), InputTypeError, "U"),
    ):
        with pytest.raises(error, match=words):
            hdgemm.generated((9, 9), "float64", f).read()
    bad = hdgemm.generated((9, 9), "float64", lambda r, c: gauss(r, c) * np.nan)
    with pytest.raises(InputError, match=r"NaN|finite"):
        hdgemm.linalg.cholesky(bad)
    for arguments in (((9,), "f8", gauss), ((9, -1), "f8", gauss), ((9, 9), "f8", 3),
                      ((9, 9), "U3", gauss)):  # fmt: skip
        with pytest.raises(InputError):
            hdgemm.generated(*arguments)
    with pytest.raises(InputError, match="together"):
        hdgemm.generated((9, 9), "f8", gauss, name="k")
    m = hdgemm.generated((9, 9), "f8", gauss)
    with pytest.raises(InputError, match="mode"):
        m[:] = 0


def test_a_durable_run_records_name_and_version(tmp_path):
    def fail(rows, cols):
        if rows.start >= 60:
            raise OSError("not yet")
        return gauss(rows, cols)

    place = {"out": tmp_path / "C.npy", "checkpoint": True, "options": TILED}
    named = {"name": "gauss", "version": "1"}
    b = numbers(90, 24)
    np.save(tmp_path / "B.npy", b)
    with pytest.raises(OSError, match="not yet"):
        hdgemm.matmul(hdgemm.generated((90, 90), "f8", fail, **named), tmp_path / "B.npy", **place)
    later = hdgemm.generated((90, 90), "f8", gauss, name="gauss", version="2")
    with pytest.raises(InputError, match="A has changed: its content"):
        hdgemm.matmul(later, tmp_path / "B.npy", **place)
    k = hdgemm.generated((90, 90), "f8", gauss, **named)
    with pytest.raises(InputError, match="A has changed"):
        hdgemm.matmul(k[::-1], tmp_path / "B.npy", **place)
    found = hdgemm.matmul(k, tmp_path / "B.npy", **place)
    np.testing.assert_allclose(found, WHOLE @ b, atol=1e-12)


def gather(shape):
    """Return an empty C, how often each element came, and a function that takes tiles."""
    c, count = np.full(shape, np.nan), np.zeros(shape, int)

    def take(rows, cols, tile):
        with pytest.raises(ValueError, match="read-only"):
            tile[:] = 0
        c[rows, cols] = tile
        count[rows, cols] += 1

    return c, count, take


@pytest.mark.parametrize("strategy", ["initial", "double-buffering", "data-placement"])
def test_a_function_gets_each_tile_once(strategy):
    a, b = numbers(100, 50), numbers(50, 70, seed=1)
    c, count, take = gather((100, 70))
    options = hdgemm.Options(devices="host", tile=(32, 24, 16), strategy=strategy)
    assert hdgemm.matmul(a, b, out=take, options=options) is take
    assert (count == 1).all()
    np.testing.assert_allclose(c, a @ b, atol=1e-12)
    old = numbers(100, 70, seed=2)
    done = hdgemm.multiply(a, b, alpha=2.0, beta=3.0, c=old, out=take, options=options)
    assert done.moved_bytes == done.planned_bytes
    np.testing.assert_allclose(c, 2 * a @ b + 3 * old, atol=1e-12)
    hdgemm.multiply(a[:, :0], b[:0], out=take)
    assert not c.any()


def test_tiles_are_checked_before_a_function_gets_them():
    a, (c, _, take) = numbers(64, 64), gather((64, 64))
    options = hdgemm.Options(devices="host", tile=(32, 24, 16), verify="tiles")
    hdgemm.matmul(a, a, out=take, options=options)
    np.testing.assert_allclose(c, a @ a, atol=1e-12)
    with pytest.raises(InputError, match="verify='tiles'"):
        hdgemm.matmul(a, a, out=take, options=hdgemm.Options(verify=True))
    with pytest.raises(InputError, match="needs a file"):
        hdgemm.matmul(a, a, out=take, checkpoint=True)


def test_an_error_of_the_function_ends_the_run():
    calls = []

    def fail(rows, cols, tile):
        calls.append(rows)
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        hdgemm.matmul(numbers(200, 50), numbers(50, 200), out=fail, options=TILED)
    assert len(calls) == 1


def test_a_stream_yields_the_product():
    a, b = numbers(100, 50), numbers(70, 50, seed=1)
    c, count, take = gather((100, 70))
    for rows, cols, tile in hdgemm.stream(a, b, trans_b=1, options=TILED):
        take(rows, cols, tile)
    assert (count == 1).all()
    np.testing.assert_allclose(c, a @ b.T, atol=1e-12)
    assert not list(hdgemm.stream(a[:0], b, trans_b=1))
    with pytest.raises(InputError, match="columns of op"):
        next(hdgemm.stream(a, b, options=TILED))


def test_leaving_a_stream_cancels_its_run():
    a = numbers(200, 50)
    threads = threading.active_count()
    for _ in hdgemm.stream(a, a, trans_b=1, options=TILED):
        break
    stopped = hdgemm.stream(a, a, trans_b=1, options=TILED)
    next(stopped)
    stopped.close()
    assert not any(each.name == "hdgemm-stream" for each in threading.enumerate())
    assert threading.active_count() <= threads + 8  # threads of the process's pools
    cancel = threading.Event()
    cancelled = hdgemm.stream(a, a, trans_b=1, options=TILED, cancel=cancel)
    next(cancelled)
    cancel.set()
    with pytest.raises(CancelledRunError):
        list(cancelled)


def test_the_loop_over_a_stream_cannot_wait_for_its_session():
    a = numbers(100, 50)

    def refused():
        with hdgemm.Session(TILED) as session:
            tiles = hdgemm.stream(a, a, trans_b=1, session=session)
            next(tiles)
            for call in (
                lambda: hdgemm.matmul(a.T, a, session=session),
                lambda: next(hdgemm.stream(a, a, trans_b=1, session=session)),
                session.close,
            ):
                with pytest.raises(InputError, match="close that stream"):
                    call()
            tiles.close()
            return hdgemm.matmul(a.T, a, session=session)

    np.testing.assert_allclose(within_minutes(refused), a.T @ a, atol=1e-12)


def expected(c, k):
    """Sort each row by Python: descending values, then ascending columns; NaN is left out."""
    values, indices = np.full((len(c), k), np.nan), np.full((len(c), k), -1)
    for i, row in enumerate(c):
        best = sorted((-v, j) for j, v in enumerate(row.tolist()) if v == v)[:k]
        for place, (value, j) in enumerate(best):
            values[i, place], indices[i, place] = -value, j
    return values, indices


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_topk_is_pythons(data):
    m, n, p = (data.draw(st.integers(1, 80)) for _ in range(3))
    k = data.draw(st.integers(1, n))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    most = data.draw(st.sampled_from([1, 3, 1000]))  # many ties, and few
    a, b = rng.integers(-most, most + 1, (m, p)), rng.integers(-most, most + 1, (n, p))
    dtype = data.draw(st.sampled_from(["float32", "float64", "int16"]))
    tile = data.draw(st.sampled_from([(16, 8, 8), (32, 24, 16), None]))
    options = hdgemm.Options(host_memory="64MB", devices="host", tile=tile)
    found = hdgemm.topk(a.astype(dtype), b.astype(dtype), k, trans_b=True, options=options)
    values, indices = expected(a @ b.T, k)
    assert found.values.dtype == ("int64" if dtype == "int16" else dtype)
    np.testing.assert_array_equal(found.indices, indices)
    np.testing.assert_array_equal(found.values, values)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_topk_of_a_matrix_and_itself_is_pythons(tmp_path_factory, data):
    n, p = data.draw(st.integers(1, 90)), data.draw(st.integers(1, 20))
    k = data.draw(st.integers(1, n))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    most = data.draw(st.sampled_from([1, 1000]))
    a = rng.integers(-most, most + 1, (n, p)).astype(data.draw(st.sampled_from(["f4", "f8"])))
    a[rng.random(n) < data.draw(st.sampled_from([0, 0.2]))] = np.nan
    given = a
    if data.draw(st.booleans()):
        given = tmp_path_factory.mktemp("topk") / "A.npy"
        np.save(given, a)
    tile = data.draw(st.sampled_from([(16, 8, 8), (32, 24, 16), None]))
    options = hdgemm.Options(host_memory="64MB", devices="host", tile=tile)
    found = hdgemm.topk(given, given, k, trans_b=True, options=options)
    values, indices = expected(a @ a.T, k)
    np.testing.assert_array_equal(found.indices, indices)
    np.testing.assert_array_equal(found.values, values)


def test_half_of_a_symmetric_product_is_computed():
    a = numbers(2000, 300)
    options = hdgemm.Options(host_memory="40MB", devices="host")

    def flops(b):
        events = []
        hdgemm.topk(a, b, 3, trans_b=True, options=options, observer=events.append)
        return sum(event.flops for event in events)

    assert flops(a.copy()) == 2 * 2000**2 * 300
    assert flops(a) <= 1.01 * 2000**2 * 300


class Multiplying:
    """A matrix with rectangle indexing that itself calls hdgemm."""

    shape, dtype = (90, 90), np.dtype(float)

    def __init__(self, session):
        self.session = session

    def __getitem__(self, key):
        return hdgemm.matmul(WHOLE, np.eye(90), options=TILED, session=self.session)[key]


@pytest.mark.parametrize("call", [hdgemm.linalg.svdvals, hdgemm.linalg.svd, hdgemm.linalg.norm])
def test_an_operand_that_calls_with_its_own_session_is_refused(call):
    with hdgemm.Session(options=TILED) as session:
        with pytest.raises(InputError, match="use another session"):
            call(Multiplying(session), options=TILED, session=session)
        call(Multiplying(None), options=TILED, session=session)


@pytest.mark.parametrize("same", [True, False])
def test_topk_stores_and_reports(tmp_path, same):
    a = numbers(90, 20)
    np.save(tmp_path / "A.npy", a)
    b = tmp_path / "A.npy" if same else numbers(90, 20)
    reports, options = [], hdgemm.Options(host_memory="40MB", tile=(16, 24, 8), devices="host")

    def call(out):
        return hdgemm.topk(
            tmp_path / "A.npy", b, 3, trans_b=True, out=out, report=reports.append, options=options
        )

    exact = call(None)
    [report] = reports
    assert report.plan["kind"] == "topk"
    assert report.moved_bytes == report.planned_bytes
    assert 40 * 10**6 >= report.plan["host_bytes"] > 90 * 3 * 16 + (16 << 20)
    for out in (
        (tmp_path / "values.npy", tmp_path / "indices.npy"),
        (np.zeros((90, 3)), np.zeros((90, 3), np.int64, "F")),
        (None, tmp_path / "indices.npy"),
    ):
        found = call(out)
        for place, stored, values in zip(out, found, exact, strict=True):
            assert not isinstance(place, np.ndarray) or stored is place
            np.testing.assert_array_equal(stored, values)
    np.testing.assert_array_equal(np.load(tmp_path / "values.npy"), exact.values)
    assert np.load(tmp_path / "indices.npy").dtype == np.int64
    for out, words in (
        ((tmp_path / "values.npy",) * 2, "overlap"),
        ((tmp_path / "A.npy", None), "file of an operand"),
        (tmp_path / "values.npy", "must be a tuple"),
        ((np.zeros((90, 4)), None), r"it must be \(90, 3\)"),
    ):
        with pytest.raises(InputError, match=words):
            call(out)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"A.npy", "values.npy", "indices.npy"}


@pytest.mark.parametrize("most", [1, 100])
def test_topk_sorts_candidates_by_parts_of_a_tile(monkeypatch, most):
    monkeypatch.setattr("hdgemm.blas.topk._TABLE", 40)
    rng = np.random.default_rng(most)
    a, b = (rng.integers(-most, most, (rows, 5)).astype(float) for rows in (40, 70))
    for tile in (None, (16, 8, 8)):
        options = hdgemm.Options(host_memory="64MB", devices="host", tile=tile)
        found = hdgemm.topk(a, b, 6, trans_b=True, options=options)
        values, indices = expected(a @ b.T, 6)
        np.testing.assert_array_equal(found.indices, indices)
        np.testing.assert_array_equal(found.values, values)


def test_tiles_for_a_function_cost_no_requests_to_files(tmp_path):
    np.save(tmp_path / "A.npy", np.ones((3000, 64), np.float32))
    options = hdgemm.Options(host_memory="20MB", devices="host", tile=(500, 600, 64))
    paths = tmp_path / "A.npy", tmp_path / "A.npy"
    places = [
        hdgemm.plan(*paths, trans_b=True, out=out, options=options)[0].problem.c.place
        for out in (lambda *_: None, tmp_path / "C.npy")
    ]
    assert places == ["memory", "file"]


def test_topk_of_nan_and_inf():
    rows = np.array([
        [np.nan, 1, np.nan, 3, np.nan], [np.nan] * 5, [-np.inf] * 5,
        [np.inf, np.nan, 5, np.inf, -np.inf], [np.nan, np.nan, np.nan, -np.inf, 2],
    ])  # fmt: skip
    one = np.ones((1, 1))
    for row in rows:
        options = hdgemm.Options(host_memory="64MB", devices="host", tile=(1, 2, 1))
        for k in (1, 2, 5):
            found = hdgemm.topk(one, row[np.newaxis], k, options=options)
            values, indices = expected(row[np.newaxis], k)
            np.testing.assert_array_equal(found.indices, indices)
            np.testing.assert_array_equal(found.values, values)


def test_topk_refuses_what_has_no_order():
    a = numbers(20, 10)
    for k, error, words in ((0, InputError, "at least 1"), (21, InputError, "20 columns"),
                            (1.5, InputError, "whole number")):  # fmt: skip
        with pytest.raises(error, match=words):
            hdgemm.topk(a, a, k, trans_b=True)
    with pytest.raises(InputError, match="complex"):
        hdgemm.topk(1j * a, a, 1, trans_b=True)
    with pytest.raises(DoesNotFitError):
        hdgemm.topk(a, a, 1, trans_b=True, options=hdgemm.Options(host_memory="1MB"))


CHILD = """
import resource, sys
import numpy as np
import hdgemm
options = hdgemm.Options(host_memory="100MB", devices="host")
small = np.ones((300, 64), np.float32)
hdgemm.topk(small, small, 5, trans_b=True, options=options)
hdgemm.matmul(np.ones((700, 700)), np.ones((700, 700)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = hdgemm.topk(sys.argv[1], sys.argv[1], 10, trans_b=True, options=options)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert (found.indices[:50, 0] == np.arange(50)).all()
print(after - before << 10)
"""


def test_topk_never_stores_the_product(tmp_path):
    x = np.random.default_rng(3).standard_normal((10_000, 64)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    np.save(tmp_path / "x.npy", x)  # C has 400 MB
    command = [sys.executable, "-c", CHILD, str(tmp_path / "x.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 100e6 + (2 << 20)


@pytest.mark.parametrize("other", [numbers(40, 12), numbers(40, 12).astype("f4")])
@pytest.mark.parametrize("same", [True, False])
def test_topk_names_the_memory_of_result_and_product_in_one_refusal(same, other):
    def call(memory):
        options = hdgemm.Options(host_memory=memory, devices="host")
        return hdgemm.topk(other, other if same else other.copy(), 3, trans_b=True, options=options)

    def refused(memory):
        with pytest.raises(DoesNotFitError, match="topk of a 40×40 product") as caught:
            call(memory)
        assert caught.value.available == memory
        assert caught.value.missing == caught.value.requested - memory
        return caught.value.requested

    named = refused(1)
    assert refused(named - 1) == refused(named // 2) == named
    assert call(named).values.shape == (40, 3)


def test_a_stream_that_is_interrupted_as_it_begins_ends_its_run(monkeypatch):
    # Ctrl-C reaches the consumer when the thread of the run has just been started.
    real = threading.Thread.start

    def interrupted(thread):
        real(thread)
        if thread.name == "hdgemm-stream":
            raise KeyboardInterrupt

    a = numbers(200, 50)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(hdgemm.stream(a, a, trans_b=1, options=TILED))
    assert not any(each.name == "hdgemm-stream" for each in threading.enumerate())


def test_a_stream_that_is_interrupted_again_as_it_ends_ends_its_run(monkeypatch):
    a, left = numbers(200, 50), iter([KeyboardInterrupt, None])
    real = _Handover.abandon

    def interrupted(handover, error=None):
        if (raised := next(left, None)) is not None:
            raise raised
        real(handover, error)

    monkeypatch.setattr(_Handover, "abandon", interrupted)
    tiles = hdgemm.stream(a, a, trans_b=1, options=TILED)
    next(tiles)
    with pytest.raises(KeyboardInterrupt):
        tiles.close()
    assert not any(each.name == "hdgemm-stream" for each in threading.enumerate())
