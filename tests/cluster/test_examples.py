"""The examples of the functions of a cluster, on the small cluster of these tests."""

import doctest
import inspect

import numpy as np
import pytest

import hdgemm
import hdgemm.cluster


@pytest.mark.parametrize("name", ["cholesky", "multiply", "plan", "row_passes", "syrk"])
def test_the_examples_of_a_docstring_run(name, client, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 200, 200))
    matrices = {"A": a, "B": b, "S": a @ a.T + 200 * np.eye(200)}
    for stored, matrix in (matrices | {"T": rng.random((900, 20)), "y": rng.random(900)}).items():
        np.save(tmp_path / f"{stored}.npy", matrix)
    doc = inspect.getdoc(getattr(hdgemm.cluster, name)).replace("/shared", str(tmp_path))
    names = {"hdgemm": hdgemm, "client": client}
    examples = doctest.DocTestParser().get_examples(doc)
    assert examples
    for example in examples:
        if not example.source.startswith("client = "):
            exec(compile(example.source, name, "single"), names)
            assert capsys.readouterr().out == example.want or not example.want
