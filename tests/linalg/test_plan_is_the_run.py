"""The plan that is shown is the plan that runs: every routine, mode and format, durable or not."""

import numpy as np
import pytest

import hdgemm
from hdgemm import linalg
from hdgemm.routines.description import load
from hdgemm.routines.registry import planned

N = 40
#: Arguments on which the plan of a routine depends; the defaults for the others.
MODES = {
    "cholesky": [{}, {"lower": True}],
    "lu": [{}],
    "qr": [{"mode": mode} for mode in ("r", "raw", "economic", "full")],
    "solve": [{}, {"assume_a": "pos"}, {"assume_a": "sym", "lower": True}, {"transposed": True},
              {"assume_a": "upper triangular"}, {"refine": "float32"}],
    "lstsq": [{}],
    "svdvals": [{}],
    "inv": [{}, {"assume_a": "pos"}, {"assume_a": "lower triangular"}],
    "trsm": [{}, {"lower": True, "trans": 1}],
    "syrk": [{}, {"trans": 1, "lower": True}],
    "topk": [{"k": 3}, {"k": 2, "trans_b": True}],
    "det": [{}],
    "slogdet": [{}],
}  # fmt: skip
#: Iterations are planned with all passes that are allowed: here the first one converges.
FIRST_PASS = {"k": 3, "maxiter": 1, "tol": 0.9}
ITERATIONS = {"svds": [FIRST_PASS], "eigsh": [FIRST_PASS]}
FILES = ("npy", "raw", "hdf5", "zarr")
FORMATS = (*FILES, "array")
CASES = [
    # Every format with the first arguments of each routine; the others outside .npy in campaigns.
    pytest.param(
        name,
        arguments,
        kind,
        durable,
        marks=[pytest.mark.campaign] if number and kind not in {"npy", "array"} else [],
    )
    for name in dict.fromkeys(routine.name for routine in planned().values())
    for number, arguments in enumerate((MODES | ITERATIONS).get(name, [planned()[name].defaults]))
    for kind in (FORMATS if name in MODES else FILES)
    for durable in (False, True)
    if not durable or (planned()[name].durable and kind in {"npy", "raw"})
]
_DTYPES = {"result": "float64", "real": "float64"}
ROUTINES = {routine.name: routine for routine in planned().values()}


@pytest.fixture(scope="module")
def session():
    """One set of rates for all plans."""
    with hdgemm.Session() as made:
        yield made


def matrix_of(shape, arguments):
    a = np.random.default_rng(0).standard_normal(shape)
    if shape[0] == shape[1]:
        a = a @ a.T + N * np.eye(N)
    lower = "lower" in str(arguments.get("assume_a")) or arguments.get("lower")
    triangular = "triangular" in str(arguments.get("assume_a")) or "trans" in arguments
    return (np.tril if lower else np.triu)(a) if triangular else a


def stored(kind, name, matrix):
    """Return a matrix as an operand of some format."""
    if kind == "array":
        return matrix
    place = where(kind, name, matrix.shape)
    with hdgemm.create(place, matrix.shape) as made:
        made.write(matrix)
    return place


def where(kind, name, shape, dtype="float64"):
    """Return the location of a matrix of some format."""
    return {
        "npy": f"{name}.npy",
        "raw": f"{name}.bin::{'x'.join(map(str, (*shape, 1)[:2]))}:{dtype}",
        "hdf5": f"{name}.h5::X",
        "zarr": f"{name}.zarr",
        "array": None,
    }[kind]


def figures(stages):
    return {name: count for name, count in stages.items() if count}


@pytest.mark.parametrize(("name", "arguments", "kind", "durable"), CASES, ids=str)
def test_the_plan_is_the_run(tmp_path, monkeypatch, session, name, arguments, kind, durable):
    monkeypatch.chdir(tmp_path)
    routine = ROUTINES[name]
    square = routine.operands[0].square
    shape = (N, N) if square else (2 * N, 8)
    operands = {"a": stored(kind, "A", matrix_of(shape, arguments))}
    shapes = {"a": shape}
    if len(routine.operands) > 1:
        first, second = (each.stored(arguments) for each in routine.operands)
        known = dict(zip(first, shape, strict=True))
        shapes["b"] = tuple(known.get(each, 12) for each in second)
        operands["b"] = stored(kind, "B", np.ones(shapes["b"]))
    sizes = routine.extents(shapes, arguments)
    outputs = routine.present(arguments, "matrix")
    places = [
        where(kind, f"out-{x.name}", x.shape(sizes, arguments), _DTYPES.get(x.dtype, x.dtype))
        for x in outputs
    ]
    out = tuple(places) if len(places) > 1 else next(iter(places), None)
    out = None if kind == "array" else out
    given = {"out": out} if routine.stores else {}
    options = hdgemm.Options(host_memory="30MB", tile=(1, 7, 3), devices="host")
    how = {"options": options, "session": session} | ({"checkpoint": True} if durable else {})
    columns = {"columns": operands["b"]} if "b" in operands else {}
    shown = linalg.plan(name, operands["a"], out=out, **columns, **how, **arguments)
    reports, warned = [], []
    monkeypatch.setattr(hdgemm.Session, "warn_of_memory", lambda _, held: warned.append(held))
    load(routine.function)(
        *routine.leading, *operands.values(), report=reports.append, **given, **how, **arguments
    )
    [report] = reports
    planned_run, ran = shown.summary(), dict(report.plan)
    planned_run.pop("note", None)  # it says what a run decides, the run's says how it has
    assert planned_run == {key: ran.get(key) for key in planned_run}  # a run may find more
    assert warned[0] == shown.host_bytes == ran["host_bytes"]
    if "refine" in arguments:
        return  # the number of corrections is not known before the run
    assert figures(shown.planned_bytes) == figures(report.planned_bytes)
    assert figures(report.planned_bytes) == figures(report.moved_bytes)
    flops = flops_of(planned_run)
    assert report.gflops * report.seconds * 1e9 == pytest.approx(flops, rel=1e-6)
    # Operations round what they count, and reflectors are applied by blocks, with triangles T.
    counted = sum(stage.flops for stage in report.stages.values())
    assert 0.95 * flops <= counted <= (1.5 if "qr" in name else 1.05) * flops


def flops_of(plan):
    """Return the operations of a plan, or of its parts."""
    if "parts" in plan:
        return sum(map(flops_of, plan["parts"]))
    if "flops" in plan:
        return plan["flops"]
    return 2 * plan["m"] * plan["n"] * plan["k"]
