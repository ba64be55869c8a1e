"""Keywords of every call: shown by help(), checked, and turned into one value."""

import inspect
import re

import numpy as np
import pytest

import hdgemm
from hdgemm import cluster, decomposition, linalg, mpi
from hdgemm.call.keywords import Call, DurableKeywords, ProductKeywords, ReportKeywords

A = np.eye(3)
DURABLE = [
    linalg.cho_factor,
    linalg.cho_solve,
    linalg.cholesky,
    linalg.inv,
    linalg.lstsq,
    linalg.lu,
    linalg.lu_factor,
    linalg.lu_solve,
    linalg.qr,
    linalg.qr_multiply,
    linalg.solve,
    linalg.solve_triangular,
]
REPORTING = [
    linalg.cond,
    linalg.det,
    linalg.slogdet,
    hdgemm.hemm,
    hdgemm.her2k,
    hdgemm.herk,
    hdgemm.symm,
    hdgemm.syr2k,
    hdgemm.syrk,
    hdgemm.trmm,
    hdgemm.trsm,
]
PRODUCTS = [hdgemm.dgemm, hdgemm.matmul, hdgemm.multiply]
KINDS = [
    (function, kind)
    for functions, kind in (
        (DURABLE, DurableKeywords),
        (REPORTING, ReportKeywords),
        (PRODUCTS, ProductKeywords),
    )
    for function in functions
]


@pytest.mark.parametrize(("function", "kind"), KINDS, ids=lambda x: x.__name__)
def test_the_signature_names_every_keyword(function, kind):
    parameters = inspect.signature(function).parameters
    assert set(kind.__annotations__) <= set(parameters)
    assert all(p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters.values())
    assert all(
        parameters[name].kind == inspect.Parameter.KEYWORD_ONLY for name in kind.__annotations__
    )


@pytest.mark.parametrize("function", [linalg.lu_factor, linalg.qr, linalg.det, hdgemm.matmul])
def test_the_documentation_has_each_keyword_once(function):
    text = inspect.getdoc(function)
    assert "keywords" not in text
    for name in ("options", "session", "progress", "observer", "cancel"):
        lines = [line for line in text.split("\n") if name in line.split(", ")]
        assert len(lines) == 1, name


@pytest.mark.parametrize(("function", "kind"), KINDS, ids=lambda x: x.__name__)
def test_unknown_keywords_are_refused_by_the_function(function, kind):
    with pytest.raises(
        TypeError, match=rf"^{function.__name__}\(\) got an unexpected .*'chekpoint'"
    ):
        function(A, A, chekpoint=True)


#: Classes that users do not construct.
VALUES = {
    "BlockCyclicArray", "CheckedGroup", "CholeskyFactor", "ClusterPlan", "DeviceCheck",
    "DeviceInfo", "Event", "LinpackResult", "LUFactors", "MpiPlan", "PrincipalComponents",
    "Progress", "QRFactors", "Report", "Resumption", "RidgeFit", "SlogdetResult", "StageReport",
    "StoredMatrix", "TopK", "Verification",
}  # fmt: skip
CALLS = [
    pytest.param(call, id=f"{module.__name__}.{name}")
    for module in (hdgemm, linalg, decomposition, cluster, mpi)
    for name, call in ((name, getattr(module, name)) for name in module.__all__)
    if name not in VALUES and callable(call)
    if not (isinstance(call, type) and issubclass(call, BaseException))
]


@pytest.mark.parametrize("call", CALLS)
def test_every_public_call_refuses_an_unknown_keyword(call):
    required = [p for p in inspect.signature(call).parameters.values() if p.default is p.empty]
    given = ["lu" for p in required if p.kind is p.POSITIONAL_OR_KEYWORD]
    with pytest.raises(hdgemm.InputTypeError, match="nosuch"):
        call(*given, nosuch=1)


@pytest.mark.parametrize(
    ("call", "keyword", "advice"),
    [
        (hdgemm.multiply, "transA", "did you mean trans_a?"),
        (hdgemm.multiply, "TRANSB", "did you mean trans_b?"),
        (hdgemm.create, "type", "did you mean dtype?"),
        (hdgemm.verify, "roundes", "did you mean rounds?"),
        (hdgemm.open, "mod", "open() got an unexpected keyword argument 'mod': did you mean mode?"),
        (decomposition.PCA, "ncomponents", "PCA() got an unexpected keyword argument"),
        (decomposition.PCA, "ncomponents", "did you mean n_components?"),
        (hdgemm.Session, "host_memory", "host_memory is no keyword of Session, but an option"),
        (hdgemm.plan_gemm, "host_memory", "write options=hdgemm.Options(host_memory=1)"),
        (hdgemm.plan, "hostMemory", "did you mean options=hdgemm.Options(host_memory=1)?"),
        (hdgemm.Options, "hostMemory", "did you mean host_memory?"),
        (cluster.LinpackSettings, "tresh", "did you mean threshold?"),
    ],
)  # fmt: skip
def test_an_unknown_keyword_names_what_was_meant(call, keyword, advice):
    with pytest.raises(hdgemm.InputTypeError, match=re.escape(advice)):
        call(**{keyword: 1})


def test_a_call_without_options_suggests_none(tmp_path):
    with pytest.raises(hdgemm.InputTypeError, match=r"argument 'host_memory'$"):
        hdgemm.create(tmp_path / "a.npy", (2, 2), host_memory="1GB")


def test_the_signature_of_a_checked_call_stays():
    assert list(inspect.signature(hdgemm.open).parameters) == ["location", "mode"]
    assert list(inspect.signature(hdgemm.Session).parameters) == ["options"]
    assert inspect.signature(hdgemm.verify).parameters["rounds"].default == 30
    assert "cancel" in inspect.signature(hdgemm.stream).parameters


def test_a_call_is_one_value():
    options, seen = hdgemm.Options(tile=(1, 1, 1)), []
    call = Call.of(options=options, observer=seen.append, checkpoint="j", restart=True)
    assert (call.options, call.session, call.checkpoint, call.restart) == (options, None, "j", True)
    call.callbacks.observer("event")
    assert seen == ["event"]
    assert Call.of() == Call()
