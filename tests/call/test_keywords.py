"""Keywords of every call: shown by help(), checked, and turned into one value."""

import inspect

import numpy as np
import pytest

import hdgemm
from hdgemm import linalg
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


def test_a_call_is_one_value():
    options, seen = hdgemm.Options(tile=(1, 1, 1)), []
    call = Call.of(options=options, observer=seen.append, checkpoint="j", restart=True)
    assert (call.options, call.session, call.checkpoint, call.restart) == (options, None, "j", True)
    call.callbacks.observer("event")
    assert seen == ["event"]
    assert Call.of() == Call()
