"""Arguments that every way into a product refuses alike, before it computes."""

import json

import numpy as np
import pytest
import scipy.sparse

import hdgemm
from hdgemm.errors import InputError, InputTypeError
from hdgemm.linalg import solve
from hdgemm.matrices.location import parse_location
from hdgemm.pipeline.plan import from_json

X, V = np.ones((4, 4)), np.ones(4)
WAYS = {"plain": None, "options": hdgemm.Options(devices="host")}
OUTS = {
    "list": [[0.0] * 4] * 4, "one dimension": np.empty(16), "none": np.empty(()),
    "column": np.empty((4, 1)), "vector": np.empty(4), "integers": np.empty((4, 4), int),
    "half": np.empty((4, 4), "f2"), "long double": np.empty((4, 4), "g"),
    "float32": np.empty((4, 4), "f4"), "complex": np.empty((4, 4), complex),
    "big-endian": np.empty((4, 4), ">f8"), "masked": np.ma.empty((4, 4)),
    "read-only": np.broadcast_to(0.0, (4, 4)), "operand": X, "tuple": (np.empty((4, 4)),),
    "half vector": np.empty(4, "f2"), "bytes": b"c.npy",
}  # fmt: skip


@pytest.mark.parametrize("operands", [(X, X), (X, V), (V, X), (V, V), (np.ones((2, 4, 4)), X)])
@pytest.mark.parametrize("out", OUTS)
def test_an_out_is_taken_with_options_or_without(operands, out):
    outcomes = set()
    for options in WAYS.values():
        try:
            hdgemm.matmul(*operands, out=OUTS[out], options=options)
            outcomes.add("taken")
        except InputTypeError:
            outcomes.add("type")
        except InputError:
            outcomes.add("refused")
    assert len(outcomes) == 1


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    "kind", [scipy.sparse.csr_matrix, scipy.sparse.coo_array, scipy.sparse.dia_matrix]
)
def test_sparse_matrices_are_refused_in_one_sentence(kind, options):
    sparse = kind(X)
    calls = [
        lambda: hdgemm.matmul(sparse, X, options=options),
        lambda: hdgemm.matmul(V, sparse, options=options),
        lambda: hdgemm.matmul(X, X, out=sparse, options=options),
        lambda: hdgemm.dgemm(1.0, X, sparse, options=options),
        lambda: solve(sparse, V, options=options),
        lambda: hdgemm.open(sparse),
    ]
    for call in calls:
        with pytest.raises(InputTypeError, match=f"is a {kind.__name__} of scipy.sparse"):
            call()


@pytest.mark.parametrize("share", [float("nan"), -1, 1.5, float("inf")])
def test_a_share_of_a_split_is_a_part_of_one(share):
    with pytest.raises(InputError, match="a share of a split must be from 0 to 1"):
        hdgemm.Options(split={"host": share})


@pytest.mark.parametrize(
    ("split", "message"),
    [({"nope": 1.0}, "split names nope; the devices are host"), ({"host": 0.5}, "add up to 1")],
)
def test_a_split_is_checked_for_one_device_too(split, message):
    options = hdgemm.Options(split=split, devices="host")
    for call in (hdgemm.matmul, hdgemm.plan):
        with pytest.raises(InputError, match=message):
            call(X, X, options=options)
    hdgemm.matmul(X, X, options=hdgemm.Options(split={"host": 1.0}, devices="host"))


@pytest.mark.parametrize(
    "extents", [(2**61, 1, 1), (1, 2**61, 1), (1, 1, 2**61), (2**31, 1, 2**31)]
)
def test_matrices_beyond_64_bits_have_no_plan(extents):
    with pytest.raises(InputError, match=r"has 2\^63 bytes or more") as caught:
        hdgemm.plan_gemm(*extents)
    assert type(caught.value) is InputError


@pytest.mark.parametrize("error", [StopIteration("mine"), GeneratorExit("mine"), KeyError("mine")])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_an_error_of_progress_reaches_the_caller_as_it_is(tmp_path, error, checkpoint):
    def progress(_):
        raise error

    with pytest.raises(type(error)) as caught:
        hdgemm.matmul(X, X, out=tmp_path / "c.npy", progress=progress, checkpoint=checkpoint)
    assert caught.value is error
    assert not (tmp_path / "c.npy").exists()


@pytest.mark.parametrize("text", ["s3://", "s3:/", "gs:", "s3://::A", "S3://b/x.zarr::A",
                                  "http://host/x.npy", "file:///tmp/x.npy"])  # fmt: skip
def test_a_url_that_names_no_store_is_no_file(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="is no location"):
        hdgemm.matmul(X, X, out=text)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "gs:").touch()
    assert parse_location("gs:").path == tmp_path / "gs:"


@pytest.mark.parametrize("name", ["a_slots", "b_slots", "c_slots", "up", "down"])
@pytest.mark.parametrize("slots", [(10**18, 0), (10**18, 8), (1, 10**19), (-1, 8), (8, -8)])
def test_a_plan_with_endless_slots_is_refused(tmp_path, name, slots):
    """Each slot is an allocation: a list of 10^18 never ended."""
    np.save(tmp_path / "a.npy", X)
    [plan] = hdgemm.plan(tmp_path / "a.npy", X, out=tmp_path / "c.npy",
                         options=hdgemm.Options(devices="host", tile=(2, 2, 2)))  # fmt: skip
    fields = json.loads(plan.to_json())
    fields |= {name: {"count": slots[0], "nbytes": slots[1]}}
    fields |= {"host_limit": 2**62 - 1, "device_limit": 2**62 - 1}
    changed = from_json(json.dumps(fields))
    with pytest.raises(InputError, match=f"{name} are {slots[0]} of {slots[1]} bytes"):
        hdgemm.execute(changed, tmp_path / "a.npy", X, tmp_path / "c.npy")
