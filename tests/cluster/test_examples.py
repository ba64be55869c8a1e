"""The examples of the functions of a cluster, on the small cluster of these tests."""

import inspect
import re

import numpy as np
import pytest

import hdgemm
import hdgemm.cluster
from tests.examples import run_examples


@pytest.mark.parametrize(
    "name", ["ClusterPlan", "cholesky", "multiply", "plan", "row_passes", "syrk"]
)
def test_the_examples_of_a_docstring_run(name, client, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 200, 200))
    matrices = {"A": a, "B": b, "S": a @ a.T + 200 * np.eye(200)}
    for stored, matrix in (matrices | {"T": rng.random((900, 20)), "y": rng.random(900)}).items():
        np.save(tmp_path / f"{stored}.npy", matrix)
    doc = inspect.getdoc(getattr(hdgemm.cluster, name)).replace("/shared", str(tmp_path))
    run_examples(re.sub(">>> client = .*", "", doc), {"hdgemm": hdgemm, "client": client}, capsys)
